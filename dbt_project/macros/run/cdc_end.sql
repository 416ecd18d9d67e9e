{% macro cdc_end() %}
  {% if execute %}
    {% for name in ['cdc_activity', 'cdc_plans'] %}{% do cdc_forget(name) %}{% endfor %}
  {% endif %}
{% endmacro %}
