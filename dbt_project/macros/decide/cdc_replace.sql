{% macro cdc_replace(relation, decision, sql, version_properties) -%}
create or replace table {{ relation }} using iceberg
{% if decision.comment %}comment {{ cdc_literal(decision.comment) }}
{% endif %}tblproperties ('cdc.relid' = '{{ decision.relid }}', 'cdc.schema-id' = '{{ decision.schema_id }}', 'cdc.generation' = '{{ decision.generation }}',
  {{ version_properties }})
as {{ sql }}
{%- endmacro %}
