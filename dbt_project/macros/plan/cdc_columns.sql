{% macro cdc_columns(versions, baselines) %}
  {% set table = (versions | last).table %}
  {% set ordered = table.columns | sort(attribute='attnum') %}
  {% set names = fromjson(cdc_lake_columns(ordered)) %}
  {% set columns = [] %}
  {% for column in ordered if column.get('published', true) %}
    {% do columns.append(dict(column, lake=names[column.attnum | string], relabel=cdc_relabel(versions, baselines, column))) %}
  {% endfor %}
  {% do return(columns) %}
{% endmacro %}
