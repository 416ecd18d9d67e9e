{% macro cdc_activity_sql(p, relid=none, target=none) -%}
select relid, batch_id, min(commit_lsn) as low, max(commit_lsn) as high, count(*) as n,
  count_if(kind not in ('row', 'schema')) as control,
  count_if(op = 'U' and old_kind is not null) as moved,
  count_if(op = 'U' and old_kind is not null and size(unchanged) > 0) as moved_unchanged,
  array_join(array_distinct(flatten(collect_set(unchanged))), ',') as toast
from {{ cdc_events_at(p) }}
where kind in ('row', 'truncate', 'schema', 'baseline', 'gap') and generation = {{ p.generation }} and batch_id <= {{ p.batch }}
  {%- if target is not none %}
  and relid = {{ relid }} and (batch_id > {{ target.batch }} or commit_lsn >= {{ target.lsn }})
  {%- else %}
  and (batch_id > {{ p.batch - 50 }} or commit_lsn >= (
    select coalesce(max(cast(get_json_object(payload, '$.complete_to') as bigint)), 0)
    from {{ cdc_events_at(p) }} where kind = 'batch' and batch_id <= {{ p.batch - 50 }}))
  {%- endif %}
group by relid, batch_id
{%- endmacro %}
