-- Partitions, and their roots, whose TRUNCATE would not be captured, and the current state of those in `also`. `known`
-- means that the partition or its root had the trigger before.
select
  p.relid::int8 as relid,
  n.nspname as schema,
  c.relname as name,
  p.roots::int8[] as roots,
  p.moved,
  exists (
    select from pg_catalog.pg_trigger as t
    where t.tgrelid = any (p.relid || p.roots) and t.tgname like '\_cdc\_truncate\_%%'
  ) as known
from cdc.partitions as p
join pg_catalog.pg_class as c on c.oid = p.relid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where not p.guarded or p.relid = any(%(also)s)
order by p.relid
