{% macro cdc_decide(plan) %}
  {% set p = plan.position %}
  {% if flags.WHICH not in ['run', 'build'] %}{% do return({'action': 'rebuild', 'reason': 'compiled only'}) %}{% endif %}
  {% if not plan.known %}{% do return({'action': 'skip', 'reason': 'not captured at this LSN'}) %}{% endif %}
  {% if not plan.segments %}{% do return({'action': 'skip', 'reason': 'dropped at the source'}) %}{% endif %}
  {% set target = plan.found.target or {} if plan.found else cdc_target_state(cdc_existing()) %}
  {% set rebuild = {'action': 'rebuild', 'target': target} %}
  {% if var('as_of_lsn', none) is not none %}{% do return(dict(rebuild, reason='as of an LSN')) %}{% endif %}
  {% set ahead = target.batch is defined and (target.batch > p.batch or (target.generation == p.generation and target.lsn > p.upto)) %}
  {# Another run has built the table further in the meantime, so it is right.
     If the table is beyond the log, it is not right: the table or the log was restored. #}
  {% if ahead and target.batch <= (cdc_rows("select coalesce(max(batch_id), -1) from " ~ cdc_log() ~ " where kind = 'batch'")[0][0] | int) %}
    {% if flags.FULL_REFRESH %}
      {% do exceptions.raise_compiler_error(this.render() ~ ": another run has built it further than the position of this run; run the full refresh again") %}
    {% endif %}
    {% do return({'action': 'skip', 'reason': 'built further by another run'}) %}
  {% endif %}
  {% if flags.FULL_REFRESH %}{% do return(dict(rebuild, reason='full refresh')) %}{% endif %}
  {# `cdc build` has decided by `toolkit/lake/targets.py`. What follows are the same rules, for a model that dbt runs alone. #}
  {% set decided = plan.found.decision if plan.found else none %}
  {% if decided and decided.action != 'merge' %}{% do return(decided) %}{% endif %}
  {% if decided %}{% do return(dict(decided, target=target, news=cdc_news(plan, target))) %}{% endif %}
  {% if target.batch is not defined %}
    {% do return(dict(rebuild, reason='no table with a position')) %}
  {% elif ahead %}
    {% do return(dict(rebuild, reason='the table is ahead of the log')) %}
  {% elif (target.relid, target.generation) != (plan.relid, p.generation) %}
    {% do return(dict(rebuild, reason='another table had this name')) %}
  {% elif target.schema_id != plan.schema_id %}
    {% do return(dict(rebuild, reason='schema version ' ~ plan.schema_id)) %}
  {% endif %}
  {% set news = cdc_news(plan, target) %}
  {% if news.n == 0 %}
    {% do return({'action': 'skip', 'reason': 'nothing new'}) %}
  {% elif news.control %}
    {% do return(dict(rebuild, reason='a baseline, a truncate or a schema version')) %}
  {% elif news.low < target.lsn %}
    {% do return(dict(rebuild, reason='new events below the applied position')) %}
  {% elif not plan.segments[-1].key %}
    {% do return(dict(rebuild, reason='new events')) %}
  {% endif %}
  {% do return({'action': 'merge', 'reason': 'new events', 'target': target, 'news': news}) %}
{% endmacro %}
