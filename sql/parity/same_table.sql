-- Whether a table is still the one that the snapshot saw. A SELECT on pg_class and pg_inherits uses the transaction's
-- snapshot. The functions return the current state, and a SELECT of the table uses it too: it reads a partitioned table
-- by its current partitions. A file that changed since (TRUNCATE, a rewrite) hides its old rows from the snapshot.
-- %(name)s is the quoted schema.table, %(relid)s its OID.
WITH RECURSIVE tree (relid) AS (
  SELECT %(relid)s::oid
  UNION ALL
  SELECT i.inhrelid
  FROM tree AS t
  JOIN pg_class AS c ON c.oid = t.relid AND c.relkind = 'p'
  JOIN pg_inherits AS i ON i.inhparent = t.relid AND NOT i.inhdetachpending
)

SELECT to_regclass(%(name)s)::oid IS NOT DISTINCT FROM %(relid)s::oid AS same_table,
       (SELECT array_agg(t.relid ORDER BY t.relid) FROM tree AS t)
       = coalesce((SELECT array_agg(p.relid::oid ORDER BY p.relid::oid) FROM pg_partition_tree(%(relid)s::oid) AS p),
                  ARRAY[%(relid)s::oid]) AS same_parts, -- an ordinary table has none
       (SELECT bool_and(c.relfilenode = coalesce(pg_relation_filenode(c.oid), 0))
        FROM tree AS t
        JOIN pg_class AS c ON c.oid = t.relid) AS same_files
