{% materialization cdc_history, adapter='spark' %}
  {%- set relation = api.Relation.create(identifier=model['alias'], schema=schema, database=database, type='table') -%}
  {%- set lines = sql.strip().split('\n') -%}
  {%- set decision = fromjson(lines[0][7:]) -%}
  {% if decision.action == 'skip' %}
    {% do cdc_skipped(decision) %}
  {% else %}
    {% call statement('main') %}
      {{ cdc_replace(relation, decision, lines[1:] | join('\n'), "'format-version' = '2'") }}
    {% endcall %}
  {% endif %}
  {{ return({'relations': [relation]}) }}
{% endmaterialization %}
