-- The sessions that a session waits for, oldest transaction first.
select
  a.pid,
  coalesce(a.usename, '')::text as role,
  coalesce(a.application_name, '') as application,
  coalesce(a.state, '') as state,
  coalesce(pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - a.xact_start), 0)::int4 as seconds,
  pg_catalog.left(pg_catalog.regexp_replace(coalesce(a.query, ''), '\s+', ' ', 'g'), 60) as query
from pg_catalog.pg_stat_activity as a
where a.pid = any (pg_catalog.pg_blocking_pids(%(pid)s))
order by a.xact_start
