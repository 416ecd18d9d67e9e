{% macro spark__list_relations_without_caching(relation) %}
  {% set found, views = [], [] %}
  {% for row in cdc_rows("show views in " ~ relation.schema) if row[2] | string | lower != 'true' %}
    {% do views.append(row[1]) %}
  {% endfor %}
  {% for name in views %}{% do found.append([relation.schema, name, false, 'Type: VIEW']) %}{% endfor %}
  {% for row in cdc_rows("show tables in " ~ relation.schema) if row[1] not in views and row[2] | string | lower != 'true' %}
    {% do found.append([relation.schema, row[1], false, 'Provider: iceberg']) %}
  {% endfor %}
  {% do return(found) %}
{% endmacro %}
