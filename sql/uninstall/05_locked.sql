-- The tables with triggers of the toolkit, by their quoted names.
select distinct pg_catalog.format('%I.%I', s.nspname, c.relname)
from pg_catalog.pg_trigger as t
join pg_catalog.pg_class as c on c.oid = t.tgrelid
join pg_catalog.pg_namespace as s on s.oid = c.relnamespace
join pg_catalog.pg_proc as p on p.oid = t.tgfoid
join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
where n.nspname = 'cdc'
order by 1
