-- The event triggers that are not as `cdc init` creates them, and what is wrong with each.
select f.name, f.found
from (
  values
    ('_cdc_0_command', 'ddl_command_end', 'cdc.capture_command()'),
    ('_cdc_0_drop', 'sql_drop', 'cdc.capture_drop()'),
    ('_cdc_0_rewrite', 'table_rewrite', 'cdc.capture_rewrite()')
) as w (name, event, function)
left join pg_catalog.pg_event_trigger as t on t.evtname = w.name
cross join lateral (
  select
    w.name,
    case
      when t.oid is null then 'is missing'
      when t.evtfoid is distinct from pg_catalog.to_regprocedure(w.function)
        then pg_catalog.format('calls %s and not %s', t.evtfoid::pg_catalog.regprocedure, w.function)
      when t.evtevent <> w.event then pg_catalog.format('is for %s and not %s', t.evtevent, w.event)
      when t.evttags is not null
        then pg_catalog.format('is for %s only', pg_catalog.array_to_string(t.evttags, ', '))
      when t.evtenabled = 'D' then 'is disabled'
      when t.evtenabled <> 'A' then 'is not enabled always: replicas pass it by, or all others do'
    end
) as f (name, found)
where f.found is not null
order by f.name
