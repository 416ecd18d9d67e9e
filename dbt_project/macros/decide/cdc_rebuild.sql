{% macro cdc_rebuild(relation, decision, sql) %}
  {% set target, properties = decision.target, {'cdc.relid': decision.relid, 'cdc.schema-id': decision.schema_id, 'cdc.generation': decision.generation,
      'format-version': 3, 'write.parquet.row-group-size-bytes': 16777216, 'write.delete.mode': 'merge-on-read',
      'write.update.mode': 'merge-on-read', 'write.merge.mode': 'merge-on-read'} %}
  {% if env_var('CDC_RUN_PLANNED', '') %}
    {% do adapter.cdc_replace(relation.schema, relation.identifier, sql, dict(properties, comment=decision.comment), cdc_tag_name(decision), decision.since) %}
    {% call noop_statement('main', 'OK') %}{% endcall %}
  {% elif target and (target.relid, target.schema_id, target.generation) == (decision.relid, decision.schema_id, decision.generation) %}
    {% do cdc_on_branch(relation, decision, ['insert overwrite ' ~ cdc_branch(relation) ~ ' ' ~ sql]) %}
  {% else %}
    {# Unlike `cdc build`, this does not validate what it replaces: SQL has no way to (decision 82). #}
    {% set texts = [] %}
    {% for key, value in properties.items() %}{% do texts.append("'" ~ key ~ "' = '" ~ value ~ "'") %}{% endfor %}
    {% call statement('main') %}
      create {{ 'or replace ' if cdc_existing() is not none }}table {{ relation }} using iceberg {{ 'comment ' ~ cdc_literal(decision.comment) if decision.comment }}
      tblproperties ({{ texts | join(', ') }}) as {{ sql }}
    {% endcall %}
    {% do cdc_tag(relation, decision, cdc_rows("select 's' || snapshot_id from " ~ relation ~ ".snapshots where parent_id is null order by committed_at desc limit 1")[0][0][1:]) %}
  {% endif %}
{% endmacro %}
