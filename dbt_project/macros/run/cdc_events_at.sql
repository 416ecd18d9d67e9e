{% macro cdc_events_at(p) -%}
{{ cdc_log() }} version as of {{ p.snapshot }}
{%- endmacro %}
