{% macro cdc_plans_sql() -%}
select p.*, 's' || r.snapshot_id as snapshot, cast(null as string) as found from {{ source('ops', 'plans') }} p cross join {{ cdc_log() }}.refs r where r.name = 'main'
{%- endmacro %}
