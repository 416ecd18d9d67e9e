{% macro cdc_news(plan, target) %}
  {% set p = plan.position %}
  {% if plan.found %}
    {% set news = plan.found.news %}
    {% do return(dict(news, facts=cdc_facts(plan.columns, news.toast, news.moved, news.chained))) %}
  {% endif %}
  {% if target.batch == p.batch and target.lsn == p.upto %}{% do return({'n': 0}) %}{% endif %}
  {# cdc_activity distinguishes batches, but not positions inside the batch in which the target stopped.
     A target that stopped at a DDL may be before what cdc_activity has, whatever its batch is. #}
  {% set every, rows = '(' ~ cdc_activity_sql(p, plan.relid, target) ~ ')', [] %}
  {% set recent = ['cdc_activity'] if cdc_begins() and p.batch - 50 < target.batch < p.batch else [] %}
  {% for source in recent + [every] %}
    {% if not rows or (rows[0][7] or 0) | int > target.lsn %}
      {% do rows.append(cdc_rows("select coalesce(sum(n), 0), coalesce(min(low), 0), coalesce(max(high), 0), coalesce(sum(control), 0),"
          ~ " array_join(collect_set(nullif(toast, '')), ','), coalesce(sum(moved), 0), coalesce(sum(moved_unchanged), 0), max(since)"
          ~ " from " ~ source ~ " where since is not null or relid = " ~ plan.relid
          ~ " and (batch_id > " ~ target.batch ~ " or high >= " ~ target.lsn ~ ") and low < " ~ p.upto)[0]) %}
    {% endif %}
  {% endfor %}
  {% set row = rows[-1] %}
  {% do return({'n': row[0] | int, 'low': row[1] | int, 'high': row[2] | int, 'control': row[3] | int,
                'facts': cdc_facts(plan.columns, row[4], row[5], row[6])}) %}
{% endmacro %}
