-- Schema versions of every table, valid in [valid_from_lsn, valid_to_lsn).
select generation, relid, schema_id,
  get_json_object(payload, '$.schema') as schema_name,
  get_json_object(payload, '$.name') as table_name,
  coalesce(get_json_object(payload, '$.dropped') = 'true', false) as dropped,
  end_lsn as valid_from_lsn,
  lead(end_lsn) over (partition by generation, relid order by commit_lsn, ordinal) as valid_to_lsn,
  commit_lsn, ordinal, committed_at, xid, payload, batch_id
from {{ source('raw', 'events') }}
where kind = 'schema'
