{% macro cdc_resolved(plan, i, links, columns, facts) -%}
w{{ i }} as (
  select v.* except ({% for column in columns if column.attnum in facts.toast %}c{{ column.attnum }}{{ ', ' if not loop.last }}{% endfor %})
    {%- for column in columns if column.attnum in facts.toast %},
    if(c{{ column.attnum }}.rc is null, c{{ column.attnum }}, named_struct('v', l{{ column.attnum }}.v, 'rc', cast(null as bigint), 'ro', cast(null as bigint))) as c{{ column.attnum }}
    {%- endfor %}
  from v{{ i }} v
  {%- for column in columns if column.attnum in facts.toast %}
  left join {{ links }} l{{ column.attnum }} on l{{ column.attnum }}.attnum = {{ column.attnum }}
    and l{{ column.attnum }}.commit_lsn = v.c{{ column.attnum }}.rc and l{{ column.attnum }}.ordinal = v.c{{ column.attnum }}.ro
  {%- endfor %}
)
{%- endmacro %}
