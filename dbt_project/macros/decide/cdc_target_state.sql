{% macro cdc_target_state(relation) %}
  {% if relation is none or relation.is_view %}{% do return({}) %}{% endif %}
  {% do return(adapter.cdc_target(relation.schema, relation.identifier)) %}
{% endmacro %}
