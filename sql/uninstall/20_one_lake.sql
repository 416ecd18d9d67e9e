-- Remove what only the lake of this session has, while capture serves another lake.

do $uninstall$
begin
  perform cdc.withdraw('{}');
  if exists (
    select from cdc.settings as s where s.slot = pg_catalog.current_setting('cdc.slot') and s.name = 'logs'
  ) then
    delete from cdc.tick;
  end if;
  delete from cdc.settings where slot = pg_catalog.current_setting('cdc.slot');
  perform cdc.admit();
end
$uninstall$;
