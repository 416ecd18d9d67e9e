{% macro cdc_rows(query) %}
  {% set rows = [] %}
  {% for row in run_query(query).rows %}
    {% do rows.append(row.values() | list) %}
  {% endfor %}
  {% do return(rows) %}
{% endmacro %}
