-- The event triggers of DDL capture. They fire in the order of their names. `_cdc_0_` sorts before lower-case names, so
-- the catalog is read before another trigger changes it. ENABLE ALWAYS: session_replication_role = replica does not
-- switch them off.

do $install$
declare
  wanted record;
begin
  for wanted in
    select w.name, w.event, w.tag, w.function
    from (
      values
        ('_cdc_before', 'ddl_command_start', 'ALTER PUBLICATION', 'keep_publications'),
        ('_cdc_0_command', 'ddl_command_end', null, 'capture_command'),
        ('_cdc_0_drop', 'sql_drop', null, 'capture_drop'),
        ('_cdc_0_rewrite', 'table_rewrite', null, 'capture_rewrite')
    ) as w (name, event, tag, function)
  loop
    if exists (
      select from pg_event_trigger as t
      where t.evtname = wanted.name
        and (t.evtevent <> wanted.event or t.evttags is distinct from string_to_array(wanted.tag, ',')
          or t.evtfoid <> to_regprocedure(format('cdc.%I()', wanted.function)))
    ) then
      execute format('drop event trigger %I', wanted.name); -- another trigger has this name
    end if;
    if not exists (select from pg_event_trigger as t where t.evtname = wanted.name) then
      execute format(
        'create event trigger %I on %s %s execute function cdc.%I()',
        wanted.name, wanted.event, 'when tag in (' || quote_literal(wanted.tag) || ')', wanted.function
      );
    end if;
    -- An enabled trigger is not altered: a changed catalog row would mean that it was switched off in between.
    if exists (select from pg_event_trigger as t where t.evtname = wanted.name and t.evtenabled <> 'A') then
      execute format('alter event trigger %I enable always', wanted.name);
    end if;
  end loop;
end
$install$;

comment on event trigger _cdc_before is 'cdc-toolkit: keeps what publications are before they are altered';
comment on event trigger _cdc_0_command is 'cdc-toolkit: captures DDL';
comment on event trigger _cdc_0_drop is 'cdc-toolkit: captures drops';
comment on event trigger _cdc_0_rewrite is 'cdc-toolkit: captures table rewrites';
