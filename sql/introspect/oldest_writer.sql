-- The start of the oldest running transaction with an id; the current time if there is none. A transaction that is not
-- visible yet has not committed before that time. NULL if the start of a session is hidden from this role.
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
