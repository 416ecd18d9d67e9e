-- Table snapshots of all ordinary and partitioned tables of the user.
select s.relid::int8, s.snapshot::text
from cdc.table_snapshots(
  (
    select pg_catalog.array_agg(c.oid)
    from pg_catalog.pg_class as c
    join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p')
      and c.relpersistence <> 't'
      and c.oid >= 16384
      and n.nspname not like 'pg\_%%'
      and n.nspname not in ('information_schema', 'cdc')
  )
) as s
where (s.snapshot ->> 'published')::bool or not %(published)s
order by s.relid
