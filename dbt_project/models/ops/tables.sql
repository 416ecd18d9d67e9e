{{ config(materialized='view') }}
-- State of every captured table: ok, or stale from an LSN on with the reason and the command that heals it.
with newest as (
  select * from (
    select *, row_number() over (partition by relid order by generation desc, commit_lsn desc, ordinal desc) as n
    from {{ source('raw', 'events') }} where kind = 'schema'
  ) where n = 1
),
-- The copy of a part heals nothing before a check that says so.
baselines as (
  select generation, relid, max(end_lsn) as baseline_lsn, max(struct(commit_lsn, ordinal)) as position
  from {{ source('raw', 'events') }}
  where kind = 'baseline' and coalesce(get_json_object(payload, '$.scope'), 'all') in ('all', 'check')
  group by generation, relid
),
gaps as (
  select g.generation, g.relid, min_by(g.payload, g.end_lsn) as payload, min(g.end_lsn) as from_lsn
  from {{ source('raw', 'events') }} g
  left join baselines b on b.generation = g.generation and b.relid = g.relid
  where g.kind = 'gap' and (b.position is null or struct(g.commit_lsn, g.ordinal) > b.position)
  group by g.generation, g.relid
)
select n.relid, n.generation,
  concat(get_json_object(n.payload, '$.schema'), '.', get_json_object(n.payload, '$.name')) as table_name,
  case
    when get_json_object(n.payload, '$.dropped') = 'true' then 'dropped'
    when g.relid is not null then 'stale'
    when b.relid is null then 'unsupported'
    else 'ok'
  end as state,
  case when g.relid is null and b.relid is null then 'no baseline yet' else get_json_object(g.payload, '$.reason') end as reason,
  g.from_lsn,
  get_json_object(g.payload, '$.remedy') as remedy,
  b.baseline_lsn, n.schema_id
from newest n
left join baselines b on b.generation = n.generation and b.relid = n.relid
left join gaps g on g.generation = n.generation and g.relid = n.relid
