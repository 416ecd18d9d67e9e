-- Partitioned tables of the user.
select c.oid::int8, n.nspname::text, c.relname::text
from pg_catalog.pg_partitioned_table as p
join pg_catalog.pg_class as c on c.oid = p.partrelid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where c.relpersistence <> 't'
  and n.nspname not like 'pg\_%'
  and n.nspname not in ('information_schema', 'cdc')
