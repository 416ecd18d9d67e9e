-- Since when the oldest transaction with an id runs, now if there is none: what is not visible yet has committed no
-- earlier. NULL where a session's time is hidden from this role.
select nullif(
  least(
    pg_catalog.clock_timestamp(),
    (
      select pg_catalog.min(coalesce(a.xact_start, '-infinity')) from pg_catalog.pg_stat_activity as a
      where a.backend_xid is not null
    ),
    (select pg_catalog.min(p.prepared) from pg_catalog.pg_prepared_xacts as p)
  ),
  '-infinity'
)
