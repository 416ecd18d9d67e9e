{% macro cdc_activity_sql(p, relid=none, target=none) -%}
{%- if target is none -%}
with oldest as (
  select coalesce(max(cast(get_json_object(payload, '$.complete_to') as bigint)), 0) as lsn
  from {{ cdc_events_at(p) }} where kind = 'batch' and generation = {{ p.generation }} and batch_id <= {{ p.batch - 50 }}
)
{% endif -%}
select relid, batch_id, min(commit_lsn) as low, max(commit_lsn) as high, count(*) as n,
  count_if(kind not in ('row', 'schema')) as control,
  count_if(op = 'U' and old_kind is not null) as moved,
  count_if(op = 'U' and old_kind is not null and size(unchanged) > 0) as moved_unchanged,
  array_join(array_distinct(flatten(collect_set(unchanged))), ',') as toast, cast(null as bigint) as since
from {{ cdc_events_at(p) }}
where kind in ('row', 'truncate', 'schema', 'baseline', 'gap', 'erased') and generation = {{ p.generation }} and batch_id <= {{ p.batch }}
  {%- if target is not none %}
  and relid = {{ relid }} and (batch_id > {{ target.batch }} or commit_lsn >= {{ target.lsn }})
  {%- else %}
  and (batch_id > {{ p.batch - 50 }} or commit_lsn >= (select lsn from oldest))
  {%- endif %}
group by relid, batch_id
{%- if target is none %}
union all
select null, null, null, null, 0, 0, 0, 0, null, lsn from oldest
{%- endif %}
{%- endmacro %}
