-- Ordinary and partitioned tables, with the facts that a comparison needs. Nothing of the toolkit must be installed.
-- The key is the primary key. A partition is compared as part of its root.
select pg_catalog.json_build_object(
  'relid', c.oid::int8,
  'schema', n.nspname,
  'name', c.relname,
  'kind', c.relkind,
  'persistence', c.relpersistence,
  'replica_identity', case when k.conkey is null then 'f' else 'd' end,
  'key_attnums', coalesce(pg_catalog.to_json(k.conkey), '[]'),
  'columns', (
    select coalesce(pg_catalog.json_agg(pg_catalog.json_build_object(
      'attnum', a.attnum,
      'name', a.attname,
      'type_oid', a.atttypid::int8,
      'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
      'typmod', a.atttypmod,
      'not_null', a.attnotnull,
      'type_kind', t.typtype,
      'type_category', t.typcategory
    ) order by a.attnum), '[]')
    from pg_catalog.pg_attribute as a
    join pg_catalog.pg_type as t on t.oid = a.atttypid
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  )
)::text
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
left join pg_catalog.pg_constraint as k on k.conrelid = c.oid and k.contype = 'p'
where c.relkind in ('r', 'p')
  and not c.relispartition
  and c.oid >= 16384
  and n.nspname not like 'pg\_%'
  and n.nspname not in ('information_schema', 'cdc')
order by n.nspname, c.relname
