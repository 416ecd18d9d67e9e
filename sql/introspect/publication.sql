-- Publications as they are declared: which operations they send, and which tables and schemas they name themselves.
select
  p.oid::int8 as oid,
  p.pubname as name,
  p.puballtables as all_tables,
  p.pubviaroot as via_root,
  pg_catalog.array_remove(
    array[
      case when p.pubinsert then 'insert' end,
      case when p.pubupdate then 'update' end,
      case when p.pubdelete then 'delete' end,
      case when p.pubtruncate then 'truncate' end
    ],
    null
  ) as publishes,
  coalesce(
    (select pg_catalog.array_agg(r.prrelid::int8) from pg_catalog.pg_publication_rel as r where r.prpubid = p.oid), '{}'
  ) as relids,
  coalesce(
    (
      select pg_catalog.array_agg(n.nspname::text)
      from pg_catalog.pg_publication_namespace as s
      join pg_catalog.pg_namespace as n on n.oid = s.pnnspid
      where s.pnpubid = p.oid
    ),
    '{}'
  ) as schemas,
  exists (
    select
    from pg_catalog.pg_publication_rel as r
    join pg_catalog.pg_class as c on c.oid = r.prrelid and c.relname = 'change_log'
    join pg_catalog.pg_namespace as n on n.oid = c.relnamespace and n.nspname = 'cdc'
    where r.prpubid = p.oid
  ) as publishes_log
from pg_catalog.pg_publication as p
where p.pubname = any (%(publications)s)
