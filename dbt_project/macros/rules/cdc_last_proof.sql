{% macro cdc_last_proof(history, relid, proofs) %}
  {% if load_relation(proofs) is none %}{% do return(none) %}{% endif %}
  {% set plan = cdc_plan(relid, 'history') %}
  {% if not plan.known %}{% do return(none) %}{% endif %}
  {% set rows = cdc_rows("select lsn, 's' || snapshot_id from " ~ proofs ~ " where relid = " ~ relid
      ~ " and relation is not null and startswith(tag, 'proven_g" ~ plan.position.generation ~ "_')") %}
  {% set target = cdc_target_state(history) if rows else {} %}
  {% if target.batch is not defined %}{% do return(none) %}{% endif %}
  {% set lsn, news = rows[0][0] | int, cdc_news(plan, target) %}
  {% set ours = (target.relid, target.generation) == (plan.relid, plan.position.generation) %}
  {% set reached = target.lsn >= lsn or not news.n or news.low >= lsn %}
  {% if not ours or not reached or plan.version_commit >= lsn %}{% do return(none) %}{% endif %}
  {% do return({'lsn': lsn, 'snapshot': rows[0][1][1:], 'columns': plan.columns}) %}
{% endmacro %}
