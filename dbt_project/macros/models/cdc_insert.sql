{% macro cdc_insert(names) -%}
insert ({% for name in names %}{{ cdc_quote(name) }}{{ ', ' if not loop.last }}{% endfor %})
  values ({% for name in names %}s.{{ cdc_quote(name) }}{{ ', ' if not loop.last }}{% endfor %})
{%- endmacro %}
