-- Rights of the roles that are not the installer. In psql:
-- -v roles='{"drainer": "cdc_drainer", "reader": "", "tables": ["public.orders"]}'
--
-- The drainer has REPLICATION and may log in; it reads the captured tables, what the toolkit keeps about the source, and
-- the change log. It runs the functions that write for it: beacons, ticks, a WAL record, and the rotation of the change
-- log. The reader sees what the toolkit keeps about the source, and no row of any table. No other role has a right here.

-- Take back the SELECT of the drainer on tables that were captured, except on those that still are.
create or replace function cdc.withdraw(keep oid[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  granted jsonb := (select convert_from(s.value, 'UTF8')::jsonb from cdc.settings as s where s.name = 'granted');
  role name := (select r.rolname from pg_roles as r where r.oid = (granted ->> 'role')::oid);
  target text;
begin
  for target in
    select format('%I.%I', n.nspname, c.relname)
    from jsonb_array_elements_text(granted -> 'tables') as g (relid)
    join pg_class as c on c.oid = g.relid::oid
    join pg_namespace as n on n.oid = c.relnamespace
    where role is not null and c.oid <> all (keep)
  loop
    execute format('revoke select on table %s from %I', target, role);
  end loop;
end
$function$;
revoke all on function cdc.withdraw(oid[]) from public;

insert into cdc.settings (name, value)
values ('roles', convert_to(:'roles', 'UTF8'))
on conflict (name) do update set value = excluded.value where settings.value is distinct from excluded.value;

do $install$
declare
  roles jsonb := (select convert_from(s.value, 'UTF8')::jsonb from cdc.settings as s where s.name = 'roles');
  drainer name := nullif(roles ->> 'drainer', '');
  reader name := nullif(roles ->> 'reader', '');
  granted jsonb := (select convert_from(s.value, 'UTF8')::jsonb from cdc.settings as s where s.name = 'granted');
  wanted oid[];
  step record;
begin
  -- Whoever had a right in the schema loses it, and those below get it again. The copies of cdc.present have rights of
  -- their own.
  for step in
    select distinct format('revoke all on %s from %s', o.what, a.grantee::regrole) as statement
    from (
      select format('schema %I', n.nspname) as what, n.nspowner as owner, n.nspacl as acl
      from pg_namespace as n
      where n.nspname = 'cdc'
      union all
      select format('table %I.%I', 'cdc', c.relname), c.relowner, c.relacl
      from pg_class as c
      where c.relnamespace = 'cdc'::regnamespace and c.relkind in ('r', 'p', 'v')
      union all
      select format('function %s', p.oid::regprocedure), p.proowner, p.proacl
      from pg_proc as p
      where p.pronamespace = 'cdc'::regnamespace and p.proname !~ '^present_\d+$'
    ) as o
    cross join lateral aclexplode(o.acl) as a
    where a.grantee not in (0, o.owner)
  loop
    execute step.statement;
  end loop;
  for step in
    select format('grant %s on %s to %I', g.rights, g.what, r.name) as statement
    from (
      values
        ('usage', 'schema cdc', true),
        ('select', 'cdc.known_settings', true),
        ('select', 'cdc.publications', true),
        ('select', 'cdc.partitions', true),
        ('select', 'cdc.log_parts', true),
        ('select', 'cdc.log_lacking', true),
        ('select', 'cdc.logged_tables', true),
        ('execute', 'function cdc.log_is_read()', true),
        ('execute', 'function cdc.key_index(oid)', true),
        ('execute', 'function cdc.naming_types()', true),
        ('execute', 'function cdc.table_snapshots(oid[])', true),
        ('execute', 'function cdc.fingerprint()', true),
        ('execute', 'function cdc.is_signed(bytea, bytea)', true),
        ('execute', 'function cdc.beacon()', false),
        ('execute', 'function cdc.write_wal()', false)
    ) as g (rights, what, of_both)
    join (values (drainer, false), (reader, true)) as r (name, reads) on r.name is not null and (g.of_both or not r.reads)
  loop
    execute step.statement;
  end loop;
  if to_regclass('cdc.change_log') is not null then
    for step in
      select format('grant %s on %s to %I', g.rights, g.what, r.name) as statement
      from (
        values
          ('select', 'cdc.ticks', true),
          ('execute', 'function cdc.log_lacks(oid, bool)', true),
          ('execute', 'function cdc.record_tick(pg_snapshot)', false),
          ('execute', 'function cdc.forget_ticks(pg_lsn)', false),
          ('select', 'cdc.logged_changes', false),
          ('execute', 'function cdc.reads_log()', false),
          ('execute', 'function cdc.purge_log(pg_snapshot)', false)
      ) as g (rights, what, of_both)
      join (values (drainer, false), (reader, true)) as r (name, reads)
        on r.name is not null and (g.of_both or not r.reads)
    loop
      execute step.statement;
    end loop;
  end if;

  -- The tables whose rows are captured, with their partitions: a copy reads each of those by itself.
  with recursive below (relid) as (
    select t.name::regclass::oid from jsonb_array_elements_text(roles -> 'tables') as t (name) where drainer is not null
    union
    select i.inhrelid
    from below as b
    join pg_class as c on c.oid = b.relid and c.relkind = 'p'
    join pg_inherits as i on i.inhparent = b.relid
  )
  select coalesce(array_agg(b.relid), '{}') into wanted from below as b;
  perform cdc.withdraw(
    case when (granted ->> 'role')::oid = (select r.oid from pg_roles as r where r.rolname = drainer) then wanted else '{}' end
  );
  for step in
    select format('grant select on table %I.%I to %I', n.nspname, c.relname, drainer) as statement
    from pg_class as c
    join pg_namespace as n on n.oid = c.relnamespace
    where c.oid = any (wanted) and not has_table_privilege(drainer, c.oid, 'select')
  loop
    execute step.statement;
  end loop;
  for step in
    select distinct format('grant usage on schema %I to %I', n.nspname, drainer) as statement
    from pg_class as c
    join pg_namespace as n on n.oid = c.relnamespace
    where c.oid = any (wanted) and not has_schema_privilege(drainer, n.oid, 'usage')
  loop
    execute step.statement;
  end loop;

  delete from cdc.settings where name = 'granted' and drainer is null;
  insert into cdc.settings (name, value)
  select 'granted', convert_to(jsonb_build_object('role', r.oid::int8, 'tables', to_jsonb(wanted::int8[]))::text, 'UTF8')
  from pg_roles as r
  where r.rolname = drainer
  on conflict (name) do update set value = excluded.value where settings.value is distinct from excluded.value;
end
$install$;
