-- The digest of the functions as they are now: the last step, because a grant changes it too.

insert into cdc.settings (name, value)
values ('functions', cdc.fingerprint())
on conflict (slot, name) do update set value = excluded.value where settings.value is distinct from excluded.value;

-- Members of pg_read_all_data can read every table, even without a grant: the signing key, and the images in the change
-- log. Row security without a policy shows them no row, and members of pg_write_all_data write none. It does not apply to
-- the owner and to superusers.
do $install$
declare
  own record;
begin
  for own in
    select c.oid::regclass as name
    from pg_class as c
    where c.relnamespace = 'cdc'::regnamespace
      and c.relkind in ('r', 'p')
      and cdc.is_own(format('cdc.%I', c.relname))
      and not c.relrowsecurity
  loop
    execute format('alter table %s enable row level security', own.name);
  end loop;
end
$install$;
