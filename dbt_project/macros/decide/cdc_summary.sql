{% macro cdc_summary(decision) %}
  {% do return({'cdc.applied-batch': decision.batch, 'cdc.applied-lsn': decision.upto, 'cdc.generation': decision.generation}) %}
{% endmacro %}
