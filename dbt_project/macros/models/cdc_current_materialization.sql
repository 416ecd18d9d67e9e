{% materialization cdc_current, adapter='spark' %}
  {%- set relation = api.Relation.create(identifier=model['alias'], schema=schema, database=database, type='table') -%}
  {%- set lines = sql.strip().split('\n') -%}
  {%- set decision = fromjson(lines[0][7:]) -%}
  {%- set body = lines[1:] | join('\n') -%}
  {% if decision.action == 'skip' %}
    {% do cdc_skipped(decision) %}
  {% elif decision.action == 'merge' %}
    {% call statement('main') %}{{ body }}{% endcall %}
    {% do cdc_tag(relation, decision) %}
  {% else %}
    {% call statement('main') %}
      {{ cdc_replace(relation, decision, body, "'format-version' = '3', 'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read'") }}
    {% endcall %}
    {% do cdc_tag(relation, decision) %}
  {% endif %}
  {{ return({'relations': [relation]}) }}
{% endmaterialization %}
