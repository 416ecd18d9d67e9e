{% macro cdc_begin() %}
  {% if execute and flags.WHICH in ['run', 'build', 'test'] %}
    {% set p = cdc_read_position() %}
    {% do run_query("create or replace temporary view cdc_position as select " ~ p.upto ~ "L as upto, " ~ p.batch ~ "L as batch, "
        ~ p.generation ~ " as generation, 's" ~ p.snapshot ~ "' as snapshot") %}
    {% do cdc_keep('cdc_control', cdc_control_sql(p)) %}
    {% do cdc_keep('cdc_activity', cdc_activity_sql(p)) %}
    {% for name, value in {'applied-batch': p.batch, 'applied-lsn': p.upto, 'generation': p.generation}.items() %}
      {% do run_query("set `spark.sql.iceberg.snapshot-property.cdc." ~ name ~ "`=" ~ value) %}
    {% endfor %}
  {% endif %}
{% endmacro %}
