-- The files with the rows of a table, as the transaction's snapshot shows them: the table itself, or the leaves of a
-- partitioned table. Sizes are the current ones. `columns` and `attnums` belong together: each leaf numbers its columns
-- in its own way.
with recursive tree (relid) as (
  select %(relid)s::pg_catalog.oid
  union all
  select i.inhrelid
  from tree as t
  join pg_catalog.pg_class as c on c.oid = t.relid and c.relkind = 'p'
  join pg_catalog.pg_inherits as i on i.inhparent = t.relid and not i.inhdetachpending
)

select
  c.oid::int8 as relid,
  n.nspname::text as schema,
  c.relname::text as name,
  c.relkind::text as kind,
  coalesce((select a.amname = 'heap' from pg_catalog.pg_am as a where a.oid = c.relam), false) as heap,
  coalesce(pg_catalog.pg_relation_size(c.oid), 0)::int8 as bytes,
  coalesce(pg_catalog.pg_table_size(c.oid), 0)::int8 as total_bytes,
  greatest(c.reltuples, 0)::int8 as estimate,
  pg_catalog.current_setting('block_size')::int4 as page,
  pg_catalog.array_agg(a.attname::text order by a.attnum) filter (where a.attnum > 0) as columns,
  pg_catalog.array_agg(a.attnum::int4 order by a.attnum) filter (where a.attnum > 0) as attnums
from tree as t
join pg_catalog.pg_class as c on c.oid = t.relid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
left join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relkind <> 'p'
group by c.oid, n.nspname, c.relname, c.relkind, c.relam, c.reltuples
order by c.oid
