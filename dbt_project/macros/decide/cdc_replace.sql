{% macro cdc_replace(relation, decision, sql) -%}
create or replace table {{ relation }} using iceberg
{% if decision.comment %}comment {{ cdc_literal(decision.comment) }}
{% endif %}tblproperties ('cdc.relid' = '{{ decision.relid }}', 'cdc.schema-id' = '{{ decision.schema_id }}', 'cdc.generation' = '{{ decision.generation }}',
  'format-version' = '3', 'write.parquet.row-group-size-bytes' = '16777216',
  'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read')
as {{ sql }}
{%- endmacro %}
