{% macro cdc_keep(name, query) %}
  {% do cdc_forget(name) %}
  {% do run_query("cache table " ~ name ~ " as " ~ query) %}
{% endmacro %}
