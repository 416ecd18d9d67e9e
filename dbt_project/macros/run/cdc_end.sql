{% macro cdc_end() %}
  {% if execute %}
    {% for name in ['applied-batch', 'applied-lsn', 'generation'] %}
      {% do run_query("reset `spark.sql.iceberg.snapshot-property.cdc." ~ name ~ "`") %}
    {% endfor %}
    {% for name in ['cdc_activity', 'cdc_plans'] %}{% do cdc_forget(name) %}{% endfor %}
  {% endif %}
{% endmacro %}
