-- The objects of this database that produce no event, by kind. They are in no stream, and the log contains nothing of
-- them.
with found (kind) as (
  select
    case
      when c.relpersistence = 't' then 'temporary tables'
      when c.relkind = 'S' then 'sequences'
      when c.relkind = 'v' then 'views'
      when c.relkind = 'm' then 'materialized views'
      when c.relkind = 'f' then 'foreign tables'
      when c.relpersistence = 'u' then 'unlogged tables'
    end
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
  where (c.relkind in ('S', 'v', 'm', 'f') or c.relkind in ('r', 'p') and c.relpersistence <> 'p')
    and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast', 'cdc')
  union all
  select 'large objects' from pg_catalog.pg_largeobject_metadata
)

select kind, pg_catalog.count(*)::int8 as count
from found
group by kind
order by kind
