-- Published tables of which the server refuses UPDATE and DELETE, and why. "filter": the row filter uses these columns,
-- which are not of the replica identity. "list": the column list lacks these columns of the replica identity. "whole": the
-- column list names these columns, and beside REPLICA IDENTITY FULL the server accepts no list. A publication that sends
-- a partition as its root has those of the root for it, by the names of the columns.
with sent as (
  select distinct on (p.oid, t.relid) p.pubname, t.relid, r.prrelid, r.prqual, r.prattrs
  from pg_catalog.pg_publication as p
  join pg_catalog.pg_publication_rel as r on r.prpubid = p.oid
  cross join lateral (
    select r.prrelid as relid, 0 as level
    union all
    select t.relid::oid, t.level from pg_catalog.pg_partition_tree(r.prrelid) as t where p.pubviaroot
  ) as t
  where p.pubname = any (%(publications)s) and (p.pubupdate or p.pubdelete)
  order by p.oid, t.relid, t.level desc -- the uppermost that the publication names decides
)

select n.nspname as schema, c.relname as name, r.pubname as publication, f.what, f.columns
from sent as r
join pg_catalog.pg_class as c on c.oid = r.relid and c.relkind = 'r'
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
cross join lateral (
  select coalesce(pg_catalog.array_agg(k.attnum), '{}') as attnums
  from pg_catalog.pg_index as i
  cross join lateral pg_catalog.unnest(i.indkey::int2[]) with ordinality as k (attnum, place)
  where i.indrelid = c.oid and k.place <= i.indnkeyatts -- INCLUDE columns follow, and identify nothing
    and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end
) as identity
cross join lateral (
  select
    'filter' as what,
    (
      select pg_catalog.array_agg(distinct a.attname::text)
      from pg_catalog.regexp_matches(r.prqual::text, ':varattno (\d+)', 'g') as v (found)
      join pg_catalog.pg_attribute as e on e.attrelid = r.prrelid and e.attnum = v.found[1]::int2
      join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attname = e.attname
      where c.relreplident <> 'f' and a.attnum <> all (identity.attnums)
    ) as columns
  union all
  select
    case c.relreplident when 'f' then 'whole' else 'list' end,
    (
      select pg_catalog.array_agg(a.attname::text order by a.attnum)
      from pg_catalog.pg_attribute as a
      join pg_catalog.pg_attribute as e on e.attrelid = r.prrelid and e.attname = a.attname
      where a.attrelid = c.oid and case c.relreplident
        when 'f' then e.attnum = any (r.prattrs::int2[])
        else a.attnum = any (identity.attnums) and e.attnum <> all (r.prattrs::int2[])
      end
    )
) as f
where (r.prqual is not null or r.prattrs is not null) and f.columns is not null
order by n.nspname, c.relname, r.pubname, f.what
