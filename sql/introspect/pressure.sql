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
  o.name as oldest,
  o.ends as oldest_ends,
  pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - o.since)::float8 as oldest_seconds
from (select) as one
left join lateral (
  select 'that of pid ' || a.pid, a.xact_start, pg_catalog.format('select pg_terminate_backend(%s, 5000)', a.pid)
  from pg_catalog.pg_stat_activity as a
  where a.backend_xid is not null and a.pid <> pg_catalog.pg_backend_pid()
  union all
  select
    pg_catalog.format('prepared transaction %s in database %s', p.gid, p.database),
    p.prepared,
    pg_catalog.format('commit prepared %1$L, or rollback prepared %1$L', p.gid)
  from pg_catalog.pg_prepared_xacts as p
  order by 2
  limit 1
) as o (name, since, ends) on true
