{{ config(materialized='view') }}
-- The states that toolkit/rawlog/states.py decided. A table is stale while the log has a batch that was not judged.
with newest as (select max(batch_id) as batch_id from {{ source('raw', 'events') }} where kind = 'batch')
select s.relid, s.generation, s.table_name,
  if(s.batch_id = n.batch_id or s.state <> 'ok', s.state, 'stale') as state,
  if(s.batch_id = n.batch_id or s.state <> 'ok', s.reason, concat('batch ', n.batch_id, ' is not judged yet')) as reason,
  s.from_lsn,
  if(s.batch_id = n.batch_id or s.state <> 'ok', s.remedy, 'cdc build') as remedy,
  s.baseline_lsn, s.schema_id, s.batch_id
from {{ source('ops', 'table_states') }} s cross join newest n
