-- The ledger: one committed batch a row.
select batch_id, generation,
  cast(get_json_object(payload, '$.from_lsn') as bigint) as from_lsn,
  cast(get_json_object(payload, '$.upto_lsn') as bigint) as upto_lsn,
  cast(get_json_object(payload, '$.complete_to') as bigint) as complete_to,
  cast(get_json_object(payload, '$.changes') as bigint) as changes,
  origin,
  get_json_object(payload, '$.slot') as slot,
  cast(get_json_object(payload, '$.committed_at') as timestamp) as committed_at,
  payload
from {{ source('raw', 'events') }}
where kind = 'batch'
