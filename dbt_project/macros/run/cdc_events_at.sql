{% macro cdc_events_at(p) -%}
{{ cdc_log() }} {{ cdc_pinned(p) }}
{%- endmacro %}
