-- Captured DDL, one verified message a row.
select generation, commit_lsn, ordinal, end_lsn, xid, committed_at, relid,
  get_json_object(payload, '$.event') as event,
  get_json_object(payload, '$.tag') as tag,
  get_json_object(payload, '$.role') as role_name,
  get_json_object(payload, '$.sql') as sql_text,
  get_json_object(payload, '$.error') as error,
  payload, batch_id
from {{ source('raw', 'events') }}
where kind = 'ddl'
