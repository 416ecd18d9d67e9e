-- `cdc ddl pause` and `cdc ddl resume`: both leave a signed message, so the log contains the interval of the gap.

create or replace function cdc.pause()
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
begin
  insert into cdc.settings (name, value) values ('paused', convert_to(now()::text, 'UTF8')) on conflict do nothing;
  if not found then
    return false;
  end if;
  perform cdc.emit('capture_paused', jsonb_build_object('tag', 'PAUSE'));
  return true;
end
$function$;

create or replace function cdc.resume()
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
begin
  delete from cdc.settings where name = 'paused';
  if not found then
    return false;
  end if;
  perform cdc.emit('capture_resumed', jsonb_build_object(
    'tag', 'RESUME',
    'tables', to_jsonb(cdc.touched(cdc.publishable(), '{}')::int8[])
  ));
  return true;
end
$function$;

revoke all on function cdc.pause() from public;
revoke all on function cdc.resume() from public;
