{% macro cdc_is_split(segment, facts, initial) %}
  {# A million keys are 100 MB in each executor. #}
  {% do return(facts.copied > 0 and facts.changed <= 1000000 and initial is none and not segment.clears) %}
{% endmacro %}
