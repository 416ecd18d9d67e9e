-- Changes of rows, one a row, in the order of their effect; the names are those valid at each change.
with changes as (
  select * from {{ source('raw', 'events') }} where kind in ('row', 'truncate')
),
versions as (
  select generation, relid, schema_id, get_json_object(payload, '$.schema') as schema_name, get_json_object(payload, '$.name') as table_name
  from {{ source('raw', 'events') }} where kind = 'schema'
)
select c.generation, c.commit_lsn, c.ordinal, c.end_lsn, c.lsn, c.xid, c.committed_at, c.origin, c.relid,
  v.schema_name, v.table_name, c.schema_id, c.op, c.old_kind, c.new, c.old, c.unchanged, c.absent, c.batch_id
from changes c
left join versions v on v.generation = c.generation and v.schema_id = c.schema_id and v.relid = c.relid
