-- One slot. `here` is the server's own name of this database; a connection pooler may have another one. The reason of
-- an invalidation is a column in version 17 and later.
select
  s.slot_name as name,
  s.slot_type as type,
  s.plugin,
  s.database,
  pg_catalog.current_database() as here,
  s.active,
  s.active_pid,
  s.restart_lsn::text as restart_lsn,
  s.confirmed_flush_lsn::text as confirmed_flush_lsn,
  s.wal_status,
  s.safe_wal_size,
  pg_catalog.pg_wal_lsn_diff(
    case
      when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
      else pg_catalog.pg_current_wal_flush_lsn()
    end,
    s.restart_lsn
  )::int8 as retained,
  pg_catalog.to_jsonb(s) ->> 'invalidation_reason' as invalidation
from pg_catalog.pg_replication_slots as s
where s.slot_name = %(slot)s
