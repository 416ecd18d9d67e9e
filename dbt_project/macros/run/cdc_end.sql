{% macro cdc_end() %}
  {% if execute %}
    {% for name in ['applied-batch', 'applied-lsn', 'generation'] %}
      {% do run_query("reset `spark.sql.iceberg.snapshot-property.cdc." ~ name ~ "`") %}
    {% endfor %}
    {% for name in ['cdc_activity', 'cdc_plans'] %}{% do run_query("drop view if exists " ~ name) %}{% endfor %}
  {% endif %}
{% endmacro %}
