-- Tables whose rows logical replication cannot identify by default, and why. New partitions of a partitioned table get a
-- replica identity by its primary key, and by nothing else: REPLICA IDENTITY is not inherited.
select c.oid::int8 as relid, f.reason
from pg_catalog.pg_class as c
cross join lateral (
  select case
    when c.relkind = 'p' then case
      when not exists (
        select from pg_catalog.pg_index as i where i.indrelid = c.oid and i.indisprimary and i.indimmediate and i.indisvalid
      ) then 'partitions'
    end
    when c.relreplident = 'f' then null
    when c.relreplident = 'n' then 'nothing'
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
