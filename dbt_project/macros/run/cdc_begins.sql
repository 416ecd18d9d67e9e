{% macro cdc_begins() %}
  {% do return(flags.WHICH in ['run', 'build', 'test']) %}
{% endmacro %}
