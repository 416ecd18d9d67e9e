{% macro cdc_lsn(value) -%}
  {%- set text = value | string -%}
  {%- if '/' in text -%}
    {%- set high, low = text.split('/') -%}
    {{ (high | int(-1, 16)) * 4294967296 + (low | int(-1, 16)) }}
  {%- else -%}
    {{ text | int }}
  {%- endif -%}
{%- endmacro %}
