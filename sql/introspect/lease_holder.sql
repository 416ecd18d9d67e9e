-- The session that holds the lease of a slot.
select
  l.pid::text,
  coalesce(a.usename, 'unknown') as role,
  coalesce(a.application_name, '') as application,
  coalesce(pg_catalog.host(a.client_addr), 'the server''s own machine') as address,
  pg_catalog.date_trunc('second', a.backend_start) as since
from pg_catalog.pg_locks as l
left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
where
  l.locktype = 'advisory'
  and l.granted
  and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = pg_catalog.current_database())
  and l.classid = %(class)s
  and l.objid = %(key)s
  and l.objsubid = 2
