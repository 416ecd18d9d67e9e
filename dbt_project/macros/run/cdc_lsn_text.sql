{% macro cdc_lsn_text(value) -%}
  {{ '%X/%X' | format(value // 4294967296, value % 4294967296) }}
{%- endmacro %}
