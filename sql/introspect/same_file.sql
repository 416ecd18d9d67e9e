-- Whether a table is still the one that the snapshot saw. A SELECT on pg_class uses the transaction's snapshot; the
-- functions return the current state. A file that changed since (TRUNCATE, a rewrite) hides its old rows from the
-- snapshot.
select
  pg_catalog.to_regclass(%(name)s)::pg_catalog.oid is not distinct from %(relid)s::pg_catalog.oid
  and c.relfilenode is not distinct from coalesce(pg_catalog.pg_relation_filenode(%(relid)s::pg_catalog.oid), 0)
from pg_catalog.pg_class as c
where c.oid = %(relid)s::pg_catalog.oid
