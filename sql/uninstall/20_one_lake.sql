-- Remove what only the lake of this session has, while capture serves another lake.

do $uninstall$
declare
  role text;
begin
  perform cdc.withdraw('{}');
  for role in
    with named as (
      select s.slot, r.name
      from cdc.settings as s
      cross join lateral pg_catalog.jsonb_each_text(pg_catalog.convert_from(s.value, 'UTF8')::jsonb - 'tables') as r (key, name)
      where s.name = 'roles'
    )
    select m.name
    from named as m
    join pg_catalog.pg_roles as a on a.rolname = m.name
    where m.slot = pg_catalog.current_setting('cdc.slot')
      and not exists (select from named as o where o.name = m.name and o.slot <> m.slot)
  loop
    execute pg_catalog.format('revoke all on schema cdc from %I', role);
  end loop;
  if exists (
    select from cdc.settings as s where s.slot = pg_catalog.current_setting('cdc.slot') and s.name = 'logs'
  ) then
    delete from cdc.tick;
  end if;
  delete from cdc.settings where slot = pg_catalog.current_setting('cdc.slot');
end
$uninstall$;
