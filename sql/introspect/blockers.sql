-- The transactions that a new slot must wait for, oldest first.
select
  'pid ' || a.pid::text,
  coalesce(a.usename, '') as role,
  coalesce(a.application_name, '') as application,
  a.state,
  pg_catalog.extract('epoch', pg_catalog.now() - a.xact_start)::int as seconds
from pg_catalog.pg_stat_activity as a
where a.backend_xid is not null and a.pid <> pg_catalog.pg_backend_pid()
union all
select 'prepared transaction ' || p.gid, p.owner, '', 'prepared', pg_catalog.extract('epoch', pg_catalog.now() - p.prepared)::int
from pg_catalog.pg_prepared_xacts as p
order by seconds desc
