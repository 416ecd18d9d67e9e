-- What holds a lock that a session waits for, oldest transaction first, and what ends it. A prepared
-- transaction has no session: the server calls it pid 0.
select
  'pid ' || a.pid as holder,
  coalesce(a.usename, '')::text as role,
  coalesce(a.application_name, '') as application,
  coalesce(a.state, '') as state,
  coalesce(pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - a.xact_start), 0)::int4 as seconds,
  ': ' || pg_catalog.left(pg_catalog.regexp_replace(coalesce(a.query, ''), '\s+', ' ', 'g'), 60) as query,
  pg_catalog.format('select pg_terminate_backend(%%s, 5000)', a.pid) as ends
from pg_catalog.pg_stat_activity as a
where a.pid = any (pg_catalog.pg_blocking_pids(%(pid)s))
union all
select distinct
  'prepared transaction ' || p.gid,
  p.owner::text,
  '',
  'prepared',
  pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - p.prepared)::int4,
  '',
  pg_catalog.format('commit prepared %%1$L, or rollback prepared %%1$L', p.gid)
from pg_catalog.pg_locks as w
join pg_catalog.pg_locks as h
  on h.granted
    and h.pid is null
    and (h.locktype, h.database, h.relation, h.transactionid)
    is not distinct from (w.locktype, w.database, w.relation, w.transactionid)
join pg_catalog.pg_locks as x -- its own id, which it holds beside
  on x.pid is null and x.locktype = 'transactionid' and x.virtualtransaction = h.virtualtransaction
join pg_catalog.pg_prepared_xacts as p on p.transaction = x.transactionid
where not w.granted and w.pid = %(pid)s and 0 = any (pg_catalog.pg_blocking_pids(%(pid)s))
order by seconds desc
