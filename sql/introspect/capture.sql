-- Current state of the event triggers, and events they saw but could not record. A changed row version shows that a
-- trigger was disabled and enabled again.
select
  pg_catalog.jsonb_build_object(
    'triggers', coalesce(
      (
        select pg_catalog.jsonb_agg(
          pg_catalog.jsonb_build_array(t.evtname, t.evtenabled::text, t.evtfoid::int8, t.xmin::text) order by t.evtname
        )
        from pg_catalog.pg_event_trigger as t
        where t.evtname in ('_cdc_0_command', '_cdc_0_drop', '_cdc_0_rewrite')
      ),
      '[]'
    ),
    'settings', coalesce(
      (
        select pg_catalog.jsonb_agg(c.setting order by c.setting)
        from pg_catalog.pg_db_role_setting as s
        cross join lateral pg_catalog.unnest(s.setconfig) as c (setting)
        where c.setting ~ '^(event_triggers|cdc.capture)='
      ),
      '[]'
    ),
    'lost', coalesce(
      (
        select pg_catalog.jsonb_agg(s.name order by s.name)
        from cdc.known_settings as s
        where s.name ~ '^lost '
      ),
      '[]'
    )
  )::text as state,
  (
    select pg_catalog.count(*) = 3
    from pg_catalog.pg_event_trigger as t
    where t.evtenabled = 'A'
      and t.evttags is null
      and (t.evtname, t.evtevent, t.evtfoid) in (
        ('_cdc_0_command', 'ddl_command_end', pg_catalog.to_regprocedure('cdc.capture_command()')),
        ('_cdc_0_drop', 'sql_drop', pg_catalog.to_regprocedure('cdc.capture_drop()')),
        ('_cdc_0_rewrite', 'table_rewrite', pg_catalog.to_regprocedure('cdc.capture_rewrite()'))
      )
  )
  and coalesce(pg_catalog.current_setting('event_triggers', true), 'on') = 'on' as standing,
  not exists (select from pg_catalog.pg_event_trigger as t where t.evtname ~ '^_cdc_0_') as absent,
  exists (select from cdc.known_settings as s where s.name = 'paused') as paused,
  (select s.value from cdc.known_settings as s where s.name = 'functions') is not distinct from cdc.fingerprint() as intact,
  coalesce(
    (
      select pg_catalog.jsonb_agg(c.setting)
      from pg_catalog.pg_db_role_setting as s
      cross join lateral pg_catalog.unnest(s.setconfig) as c (setting)
      where case pg_catalog.split_part(c.setting, '=', 1)
        when 'event_triggers' then not pg_catalog.split_part(c.setting, '=', 2)::boolean -- false, no and 0 switch it off too
        else c.setting = 'cdc.capture=off'
      end
    ),
    '[]'
  )::text as settings
