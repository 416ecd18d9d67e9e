-- The tables whose rows SELECT shows together with those of a parent table: children by inheritance, at any depth, by
-- parent. Partitions and temporary tables are left out.
with recursive below (parent, relid) as (
  select i.inhparent, i.inhrelid
  from pg_catalog.pg_inherits as i
  join pg_catalog.pg_class as p on p.oid = i.inhparent and p.relkind = 'r'
  union
  select b.parent, i.inhrelid
  from below as b
  join pg_catalog.pg_inherits as i on i.inhparent = b.relid
)

select
  b.parent::int8,
  pg_catalog.array_agg(pg_catalog.format('%I.%I', n.nspname, c.relname) order by n.nspname, c.relname)
from below as b
join pg_catalog.pg_class as c on c.oid = b.relid and c.relpersistence <> 't'
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
group by b.parent
