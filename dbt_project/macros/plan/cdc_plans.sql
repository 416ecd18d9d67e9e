{% macro cdc_plans() %}
  {% do return('cdc_plans' if flags.WHICH in ['run', 'build', 'test'] else '(' ~ cdc_plans_sql() ~ ')') %}
{% endmacro %}
