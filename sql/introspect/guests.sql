-- Tables, sequences and types in schema cdc that are not the toolkit's. To drop the schema would drop them too, with the
-- columns of such types in any table.
select f.kind || ' ' || pg_catalog.format('%I.%I', 'cdc', f.name) as what
from (
  select
    case c.relkind
      when 'f' then 'foreign table'
      when 'm' then 'materialized view'
      when 'S' then 'sequence'
      when 'c' then 'type'
      else 'table'
    end as kind,
    c.relname as name,
    c.relkind = 'S' as later -- it may move with its table
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace and n.nspname = 'cdc'
  where c.relkind in ('r', 'p', 'f', 'm', 'S', 'c')
    and c.relname !~ '^(change_log|(settings|signing_key|tick)$)' -- as cdc.is_own
  union all
  select case t.typtype when 'd' then 'domain' else 'type' end, t.typname, false
  from pg_catalog.pg_type as t
  join pg_catalog.pg_namespace as n on n.oid = t.typnamespace and n.nspname = 'cdc'
  where t.typtype in ('d', 'e', 'r')
) as f
order by f.later, f.kind, f.name
