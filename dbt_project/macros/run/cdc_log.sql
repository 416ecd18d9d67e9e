{% macro cdc_log() %}
  {% do return(source('raw', 'events')) %}
{% endmacro %}
