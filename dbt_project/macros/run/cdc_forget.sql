{% macro cdc_forget(name) %}
  {# A REST catalog refuses the name of a temporary view that is missing, also after IF EXISTS. #}
  {% do run_query("create or replace temporary view " ~ name ~ " as select 1 as n") %}
  {% do run_query("drop view " ~ name) %}
{% endmacro %}
