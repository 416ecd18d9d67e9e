{% macro cdc_position() %}
  {% set rows = cdc_rows("select distinct upto, batch_id, generation, snapshot from " ~ cdc_plans()) %}
  {% if not rows %}{% do return(none) %}{% endif %}
  {% do return({'upto': rows[0][0] | int, 'batch': rows[0][1] | int, 'generation': rows[0][2] | int, 'snapshot': rows[0][3][1:]}) %}
{% endmacro %}
