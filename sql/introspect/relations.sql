-- Every relation of the user that the configuration could name, whether it can be captured or not.
select
  c.oid::int8 as relid,
  n.nspname as schema,
  c.relname as name,
  c.relkind::text as kind,
  c.relpersistence::text as persistence,
  c.relispartition as partition,
  pg_catalog.current_setting('server_version_num')::int4 < 180000 or not exists (
    select
    from pg_catalog.pg_attribute as a
    where a.attrelid = c.oid and a.attnum > 0 and a.attgenerated <> '' and not a.attisdropped
  ) as by_all_columns,
  coalesce(
    (
      select array_agg(i.inhparent::int8)
      from pg_catalog.pg_inherits as i
      where i.inhrelid = c.oid and c.relispartition
    ),
    '{}'
  ) as parents
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f')
  and c.oid >= 16384
  and n.nspname not like 'pg\_%%'
  and n.nspname not in ('information_schema', 'cdc')
order by n.nspname, c.relname
