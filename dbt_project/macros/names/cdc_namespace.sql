{% macro cdc_namespace(name) -%}
  {{ target.schema[:-7] if target.schema.endswith('staging') }}{{ name }}
{%- endmacro %}
