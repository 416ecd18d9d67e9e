-- The server's estimate of a table's rows, with those of its partitions; NULL before the first ANALYZE. Takes no lock.
with recursive tree (relid) as (
  select %(relid)s::pg_catalog.oid
  union all
  select i.inhrelid
  from tree as t
  join pg_catalog.pg_class as c on c.oid = t.relid and c.relkind = 'p'
  join pg_catalog.pg_inherits as i on i.inhparent = t.relid
)

select nullif(pg_catalog.sum(greatest(c.reltuples, 0)), 0)::int8
from tree as t
join pg_catalog.pg_class as c on c.oid = t.relid
where c.relkind <> 'p'
