{% macro cdc_pinned(p) -%}
version as of {{ p.snapshot }}
{%- endmacro %}
