{% macro cdc_project(plan, rows, meta) -%}
{%- set typed = [] -%}
{%- for column in plan.columns if (cdc_kind(column) | trim) != 'string' -%}{%- do typed.append(column) -%}{%- endfor -%}
select {% for column in plan.columns %}t{{ column.attnum }} as {{ cdc_quote(column.lake) }},
  {% endfor %}
  {%- for name, expression in meta.items() %}{{ expression }} as {{ name }},
  {% endfor %}
  {%- if typed -%}
  case when {% for column in typed %}(t{{ column.attnum }} is null and s{{ column.attnum }} is not null){{ ' or ' if not loop.last }}{% endfor %}
    then map_filter(map({% for column in typed %}{{ cdc_literal(column.lake) }}, if(t{{ column.attnum }} is null, s{{ column.attnum }}, null){{ ', ' if not loop.last }}{% endfor %}), (name, text) -> text is not null)
    end as _cdc_text
  {%- else -%}cast(null as map<string, string>) as _cdc_text{%- endif %}
from (
  {#- A conversion is used twice, so it has a column of its own: Spark computes an expression again for each use. #}
  select *{% for column in plan.columns %}, {{ cdc_typed('s' ~ column.attnum, column, 'v' ~ column.attnum) }} as t{{ column.attnum }}{% endfor %}
  from (select *{% for column in typed %}, {{ _cdc_value('s' ~ column.attnum, column) }} as v{{ column.attnum }}{% endfor %}
  from (
    select * {%- if plan.columns | selectattr('relabel') | list %} except ({% for column in plan.columns if column.relabel %}s{{ column.attnum }}{{ ', ' if not loop.last }}{% endfor %})
      {%- for column in plan.columns if column.relabel %}, {{ cdc_relabelled(column) }} as s{{ column.attnum }}{% endfor %}{% endif %}
    from ({{ rows }})
  ))
)
{%- endmacro %}
