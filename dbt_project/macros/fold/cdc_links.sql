{% macro cdc_links(plan, i, head, columns, facts) %}
  {% set name = 'cdc_links_' ~ this.schema ~ '_' ~ plan.relid ~ '_' ~ i ~ '_' %}
  {% set parts = [] %}
  {% for column in columns if column.attnum in facts.toast %}
    {% do parts.append("select commit_lsn, ordinal, " ~ column.attnum ~ " as attnum, c" ~ column.attnum ~ ".v as v, c" ~ column.attnum ~ ".rc as rc, c"
        ~ column.attnum ~ ".ro as ro from v" ~ i ~ " where moved and not put and array_contains(unchanged, " ~ column.attnum ~ ")") %}
  {% endfor %}
  {% set state = {'round': 0, 'open': 1} %}
  {% do cdc_keep(name ~ "0", "with " ~ head ~ " " ~ parts | join(" union all ")) %}
  {% for _ in range(64) if state.open %}
    {% do state.update({'open': cdc_rows("select count(*) from " ~ name ~ state.round ~ " where rc is not null")[0][0] | int}) %}
    {% if state.open %}
      {% set now, then = name ~ state.round, name ~ (state.round + 1) %}
      {% do cdc_keep(then, "select a.commit_lsn, a.ordinal, a.attnum, if(a.rc is null, a.v, b.v) as v, b.rc, b.ro from "
          ~ now ~ " a left join " ~ now ~ " b on a.rc = b.commit_lsn and a.ro = b.ordinal and a.attnum = b.attnum") %}
      {% do state.update({'round': state.round + 1}) %}
    {% endif %}
  {% endfor %}
  {% do return(name ~ state.round) %}
{% endmacro %}
