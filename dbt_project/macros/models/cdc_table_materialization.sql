{% materialization cdc_table, adapter='spark' %}
  {%- set relation = api.Relation.create(identifier=model['alias'], schema=schema, database=database, type='table') -%}
  {%- set lines = sql.strip().split('\n') -%}
  {%- set decision = fromjson(lines[0][7:]) -%}
  {%- set body = lines[1:] | join('\n') -%}
  {% if decision.action == 'skip' %}
    {% do cdc_skipped(decision) %}
  {% elif decision.action == 'merge' %}
    {% do cdc_apply(relation, decision, body) %}
  {% else %}
    {% do cdc_rebuild(relation, decision, body) %}
  {% endif %}
  {{ return({'relations': [relation]}) }}
{% endmaterialization %}
