{% macro cdc_tag_name(decision) %}
  {% do return('g' ~ decision.generation ~ '_lsn_' ~ ('%016x' | format(decision.upto)) if decision.layer == 'current' else none) %}
{% endmacro %}
