-- The sessions that hold a lock that a reader of a table must wait for.
select distinct l.pid, a.state, a.application_name, pg_catalog.extract('epoch', pg_catalog.now() - a.xact_start)::int
from pg_catalog.pg_locks as l
join pg_catalog.pg_stat_activity as a on a.pid = l.pid
where l.relation = %(relid)s::pg_catalog.oid and l.mode = 'AccessExclusiveLock' and l.granted
order by l.pid
