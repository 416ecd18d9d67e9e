-- Each table with triggers of the toolkit, and the statements that drop them. Triggers on the toolkit's own tables are
-- dropped with those tables. In psql: -v names=%
select
  w.target,
  string_agg(pg_catalog.format('drop trigger %I on %s', w.tgname, w.target), '; ' order by w.tgname) as statements
from (
  select t.tgname, pg_catalog.format('%I.%I', s.nspname, c.relname) as target
  from pg_catalog.pg_trigger as t
  join pg_catalog.pg_class as c on c.oid = t.tgrelid
  join pg_catalog.pg_namespace as s on s.oid = c.relnamespace
  join pg_catalog.pg_proc as p on p.oid = t.tgfoid
  join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
  where n.nspname = 'cdc' and s.nspname <> 'cdc' and t.tgname like :'names'
) as w
group by w.target
order by w.target
