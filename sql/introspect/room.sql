-- Whether a temporary slot can be created now: whether a slot and a sender are free, and how long the oldest
-- transaction that the creation would wait for has been running (NULL: there is none).
select
  (select count(*) from pg_catalog.pg_replication_slots) < pg_catalog.current_setting('max_replication_slots')::int
  and (select count(*) from pg_catalog.pg_stat_replication) < pg_catalog.current_setting('max_wal_senders')::int,
  (
    select pg_catalog.extract('epoch', pg_catalog.max(pg_catalog.clock_timestamp() - s.since))
    from (
      select a.xact_start from pg_catalog.pg_stat_activity as a
      where a.backend_xid is not null and a.pid <> pg_catalog.pg_backend_pid()
      union all
      select p.prepared from pg_catalog.pg_prepared_xacts as p
    ) as s(since)
  )::float8
