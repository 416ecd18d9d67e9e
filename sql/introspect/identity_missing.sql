-- Tables whose rows logical replication cannot identify by default, and why. New partitions of a partitioned table get a
-- replica identity by its primary key, and by nothing else: REPLICA IDENTITY is not inherited. PostgreSQL 18 refuses to
-- write a row of which a generated column identifies it and is not sent. Publications send stored ones on request.
with generated as (
  select a.attrelid, a.attnum
  from pg_catalog.pg_attribute as a
  where a.attgenerated <> '' and a.attnum > 0 and not a.attisdropped
    and pg_catalog.current_setting('server_version_num')::int4 >= 180000
    and not (
      a.attgenerated = 's' and exists (
        select
        from pg_catalog.pg_publication as p
        cross join lateral pg_catalog.pg_get_publication_tables(p.pubname::text) as t
        where pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's' and t.relid = a.attrelid and a.attnum = any (t.attrs)
      )
    )
)

select c.oid::int8 as relid, f.reason
from pg_catalog.pg_class as c
cross join lateral (
  select case
    when c.relkind = 'p' then case
      when not exists (
        select from pg_catalog.pg_index as i where i.indrelid = c.oid and i.indisprimary and i.indimmediate and i.indisvalid
      ) then 'partitions'
    end
    when c.relreplident = 'f' then case when c.oid in (select g.attrelid from generated as g) then 'generated' end
    when c.relreplident = 'n' then 'nothing'
    when exists (
      select
      from pg_catalog.pg_index as i
      join generated as g on g.attrelid = c.oid and g.attnum = any (i.indkey)
      where i.indrelid = c.oid and case c.relreplident when 'i' then i.indisreplident else i.indisprimary end
    ) then 'generated'
    when c.relreplident = 'i' then case
      when not exists (select from pg_catalog.pg_index as i where i.indrelid = c.oid and i.indisreplident and i.indisvalid)
        then 'index'
    end
    when exists (
      select from pg_catalog.pg_index as i where i.indrelid = c.oid and i.indisprimary and i.indimmediate and i.indisvalid
    ) then null
    when exists (select from pg_catalog.pg_index as i where i.indrelid = c.oid and i.indisprimary) then 'deferrable'
    else 'none'
  end as reason
) as f
where c.relkind in ('r', 'p') and f.reason is not null
