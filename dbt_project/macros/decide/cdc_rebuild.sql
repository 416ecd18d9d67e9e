{% macro cdc_rebuild(relation, decision, sql) %}
  {% set properties = {'cdc.relid': decision.relid, 'cdc.schema-id': decision.schema_id, 'cdc.generation': decision.generation,
      'format-version': 3, 'write.parquet.row-group-size-bytes': 16777216, 'write.delete.mode': 'merge-on-read',
      'write.update.mode': 'merge-on-read', 'write.merge.mode': 'merge-on-read', 'comment': decision.comment} %}
  {% do adapter.cdc_replace(relation.schema, relation.identifier, sql, properties, cdc_summary(decision), cdc_tag_name(decision), decision.since) %}
  {% call noop_statement('main', 'OK') %}{% endcall %}
{% endmacro %}
