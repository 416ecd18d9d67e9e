-- Whether a table is still the one that the snapshot saw. A SELECT on pg_class and pg_inherits uses the transaction's
-- snapshot. The functions return the current state, and a SELECT of the table uses it too: it reads a partitioned table
-- by its current partitions. A file that changed since (TRUNCATE, a rewrite) hides its old rows from the snapshot.
-- %(name)s is the quoted schema.table, %(relid)s its OID.
with recursive tree (relid) as (
  select %(relid)s::pg_catalog.oid
  union all
  select i.inhrelid
  from tree as t
  join pg_catalog.pg_class as c on c.oid = t.relid and c.relkind = 'p'
  join pg_catalog.pg_inherits as i on i.inhparent = t.relid and not i.inhdetachpending
)

select
  pg_catalog.to_regclass(%(name)s)::pg_catalog.oid is not distinct from %(relid)s::pg_catalog.oid as same_table,
  (select pg_catalog.array_agg(t.relid order by t.relid) from tree as t)
  = coalesce(
    (
      select pg_catalog.array_agg(p.relid::pg_catalog.oid order by p.relid::pg_catalog.oid)
      from pg_catalog.pg_partition_tree(%(relid)s::pg_catalog.oid) as p
    ),
    array[%(relid)s::pg_catalog.oid] -- an ordinary table has none
  ) as same_parts,
  (
    select pg_catalog.bool_and(c.relfilenode = coalesce(pg_catalog.pg_relation_filenode(c.oid), 0))
    from tree as t
    join pg_catalog.pg_class as c on c.oid = t.relid
  ) as same_files
