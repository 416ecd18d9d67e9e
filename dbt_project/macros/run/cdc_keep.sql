{% macro cdc_keep(name, query) %}
  {% do run_query("drop view if exists " ~ name) %}
  {% do run_query("cache table " ~ name ~ " as " ~ query) %}
{% endmacro %}
