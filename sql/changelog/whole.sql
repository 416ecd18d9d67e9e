-- The tables with all triggers of the change log. One that cannot be read for its owner (cdc.reader) is left out, if
-- this role can change that.
select l.relid::int8
from cdc.logged_tables as l
join pg_catalog.pg_class as c on c.oid = l.relid
left join pg_catalog.pg_proc as p on p.oid = pg_catalog.to_regprocedure('cdc.log_row()')
where c.relkind = 'p'
  or c.relowner = p.proowner
  or pg_catalog.to_regproc('cdc.present_' || c.relowner) is not null
  or not pg_catalog.has_function_privilege('cdc.log_table(oid, bool)', 'execute')
