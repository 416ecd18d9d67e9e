-- The free replication resources of the server, and the oldest transaction with an id: a slot keeps WAL from before it.
select
  (
    select s.setting::int8 from pg_catalog.pg_settings as s
    where s.name = 'max_slot_wal_keep_size'
  ) as keep_mb,
  pg_catalog.current_setting('max_replication_slots')::int as slots,
  (select pg_catalog.count(*)::int from pg_catalog.pg_replication_slots) as slots_used,
  pg_catalog.current_setting('max_wal_senders')::int as senders,
  (select pg_catalog.count(*)::int from pg_catalog.pg_stat_replication) as senders_used,
  o.pid as oldest_pid,
  pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - o.xact_start)::float8 as oldest_seconds
from (select) as one
left join lateral (
  select a.pid, a.xact_start from pg_catalog.pg_stat_activity as a
  where a.backend_xid is not null and a.pid <> pg_catalog.pg_backend_pid()
  order by a.xact_start
  limit 1
) as o on true
