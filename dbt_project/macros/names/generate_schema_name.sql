{% macro generate_schema_name(custom_schema_name, node) -%}
  {%- if var('as_of_lsn', none) is not none -%}
    {{ cdc_namespace('asof_' ~ '%016x' | format(cdc_lsn(var('as_of_lsn')) | trim | int)) }}
  {%- else -%}
    {{ cdc_namespace(custom_schema_name) if custom_schema_name else target.schema }}
  {%- endif -%}
{%- endmacro %}
