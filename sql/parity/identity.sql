-- Whether a table is still the one that the snapshot saw. Reading pg_class goes through the transaction's snapshot;
-- the functions answer for now. A file that changed since (TRUNCATE, a rewrite) hides its old rows from the snapshot.
-- %(name)s is the quoted schema.table, %(relid)s its OID.
SELECT to_regclass(%(name)s)::oid IS NOT DISTINCT FROM %(relid)s::oid AS same_table,
       c.relfilenode IS NOT DISTINCT FROM coalesce(pg_relation_filenode(%(relid)s::oid), 0) AS same_file,
       (SELECT count(*)
        FROM pg_inherits AS i
        JOIN pg_class AS l ON l.oid = i.inhrelid
        WHERE i.inhparent = %(relid)s::oid
          AND l.relfilenode IS DISTINCT FROM coalesce(pg_relation_filenode(l.oid), 0)) = 0 AS same_parts
FROM pg_class AS c
WHERE c.oid = %(relid)s::oid
