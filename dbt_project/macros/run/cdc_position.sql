{% macro cdc_position() %}
  {% if flags.WHICH in ['run', 'build', 'test'] %}
    {% set row = cdc_rows("select upto, batch, generation, snapshot from cdc_position")[0] %}
    {% do return({'upto': row[0] | int, 'batch': row[1] | int, 'generation': row[2] | int, 'snapshot': row[3][1:]}) %}
  {% endif %}
  {% do return(cdc_read_position()) %}
{% endmacro %}
