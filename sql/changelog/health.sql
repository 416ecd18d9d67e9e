-- The size of the change log, and the oldest transaction that prevents it from being purged or drained further.
select
  (
    select pg_catalog.sum(pg_catalog.pg_total_relation_size(i.inhrelid))::int8
    from pg_catalog.pg_inherits as i
    join pg_catalog.pg_class as c on c.oid = i.inhparent and c.relname = 'change_log'
    join pg_catalog.pg_namespace as n on n.oid = c.relnamespace and n.nspname = 'cdc'
  ) as bytes,
  o.*
from (select) as one
left join (
  select
    'pid ' || a.pid as name,
    coalesce(a.usename, '') as role,
    pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - a.xact_start)::int as seconds
  from pg_catalog.pg_stat_activity as a
  where a.backend_xid is not null and a.pid <> pg_catalog.pg_backend_pid()
  union all
  select 'prepared transaction ' || p.gid, p.owner, pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - p.prepared)::int
  from pg_catalog.pg_prepared_xacts as p
  where p.database = pg_catalog.current_database()
  order by seconds desc
  limit 1
) as o on true
