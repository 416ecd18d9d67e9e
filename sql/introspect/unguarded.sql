-- Partitions, and their roots, whose TRUNCATE would go unheard: the root publishes their rows, and the trigger is missing
-- or off. `moved` says that the partition has another file than the one it was born with: it may have been truncated.
with recursive publication as (
  select p.oid, p.puballtables
  from pg_catalog.pg_publication as p
  where p.pubname = %(publication)s and p.pubviaroot
),

tree (root, relid) as (
  select c.oid, c.oid
  from pg_catalog.pg_class as c
  cross join publication as p
  where c.relkind = 'p'
    and (
      p.puballtables
      or exists (select from pg_catalog.pg_publication_rel as r where r.prpubid = p.oid and r.prrelid = c.oid)
      or exists (
        select from pg_catalog.pg_publication_namespace as n where n.pnpubid = p.oid and n.pnnspid = c.relnamespace
      )
    )
  union
  select t.root, i.inhrelid
  from tree as t
  join pg_catalog.pg_inherits as i on i.inhparent = t.relid
)

select
  c.oid::int8 as relid,
  n.nspname as schema,
  c.relname as name,
  pg_catalog.array_agg(t.root::int8) as roots,
  pg_catalog.bool_or(c.relkind = 'r' and c.relfilenode <> c.oid) as moved
from tree as t
join pg_catalog.pg_class as c on c.oid = t.relid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where not exists (
  select from pg_catalog.pg_trigger as g where g.tgrelid = c.oid and g.tgname = '_cdc_truncate' and g.tgenabled = 'A'
) or c.oid = any (%(also)s)
group by c.oid, n.nspname, c.relname
order by c.oid
