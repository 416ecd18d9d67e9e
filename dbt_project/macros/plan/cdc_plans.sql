{% macro cdc_plans() %}
  {% do return('cdc_plans' if cdc_begins() else '(' ~ cdc_plans_sql() ~ ')') %}
{% endmacro %}
