{% macro generate_schema_name(custom_schema_name, node) -%}
  {%- if var('as_of_lsn', none) is not none -%}
    asof_{{ '%016x' | format(cdc_lsn(var('as_of_lsn')) | trim | int) }}
  {%- else -%}
    {{ custom_schema_name or target.schema }}
  {%- endif -%}
{%- endmacro %}
