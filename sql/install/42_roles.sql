-- Rights of the roles that are not the installer. In psql:
-- -v roles='{"drainer": "cdc_drainer", "reader": "", "tables": ["public.orders"]}'
--
-- The drainer has REPLICATION and may log in; it reads the captured tables, what the toolkit keeps about the source, and
-- the change log. It runs the functions that write for it: beacons, ticks, a WAL record, and the rotation of the change
-- log. The reader sees what the toolkit keeps about the source, and no row of any table. No other role has a right here.

-- Take back the SELECT of the drainer of this lake on tables that were captured, except on those that still are, and the
-- USAGE of their schemas. What it had before `cdc init` stays. Without cdc.slot: of all drainers.
create or replace function cdc.withdraw(keep oid[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  step text;
begin
  for step in
    with granted as (
      select s.slot, f.about
      from cdc.settings as s
      cross join lateral (select convert_from(s.value, 'UTF8')::jsonb) as f (about)
      where s.name = 'granted' or s.name like 'granted %' -- by cdc.let_read
    )
    select format('revoke select on table %I.%I from %I', n.nspname, c.relname, r.rolname)
    from granted as g
    join pg_roles as r on r.oid = (g.about ->> 'role')::oid
    cross join jsonb_array_elements_text(g.about -> 'tables') as t (relid)
    join pg_class as c on c.oid = t.relid::oid
    join pg_namespace as n on n.oid = c.relnamespace
    where coalesce(current_setting('cdc.slot', true), '') in ('', g.slot)
      and c.oid <> all (keep)
      and not exists ( -- another lake with the same drainer
        select
        from granted as o
        where o.slot <> g.slot
          and current_setting('cdc.slot', true) <> ''
          and o.about -> 'role' = g.about -> 'role'
          and o.about -> 'tables' @> to_jsonb(c.oid::int8)
      )
    union
    select format('revoke usage on schema %I from %I', n.nspname, r.rolname)
    from granted as g
    join pg_roles as r on r.oid = (g.about ->> 'role')::oid
    cross join jsonb_array_elements_text(g.about -> 'schemas') as t (place)
    join pg_namespace as n on n.oid = t.place::oid
    where coalesce(current_setting('cdc.slot', true), '') in ('', g.slot)
      and not exists (select from pg_class as c where c.oid = any (keep) and c.relnamespace = n.oid)
      and not exists (
        select
        from granted as o
        cross join jsonb_array_elements_text(o.about -> 'tables') as k (relid)
        join pg_class as c on c.oid = k.relid::oid
        where o.slot <> g.slot
          and current_setting('cdc.slot', true) <> ''
          and o.about -> 'role' = g.about -> 'role'
          and c.relnamespace = n.oid
      )
  loop
    execute step;
  end loop;
end
$function$;
revoke all on function cdc.withdraw(oid[]) from public;

-- Give the roles of all lakes their rights in the schema, by the settings, and take every other right there back, but those of
-- the owner of the functions.
create or replace function cdc.admit()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  step record;
begin
  -- Whoever had a right in the schema loses it, and the roles of each lake get it again: on the change log only those of
  -- the lake that uses it. The copies of cdc.present have rights of their own.
  for step in
    select distinct format('revoke all on %s from %s', o.what, a.grantee::regrole) as statement
    from (
      select format('schema %I', n.nspname) as what, n.nspowner as owner, n.nspacl as acl
      from pg_namespace as n
      where n.nspname = 'cdc'
      union all
      select format('table %I.%I', 'cdc', c.relname), c.relowner, c.relacl
      from pg_class as c
      where c.relnamespace = 'cdc'::regnamespace
        and c.relkind in ('r', 'p', 'v')
        and (c.relkind = 'v' or cdc.is_own(format('cdc.%I', c.relname)))
      union all
      select format('function %s', p.oid::regprocedure), p.proowner, p.proacl
      from pg_proc as p
      where p.pronamespace = 'cdc'::regnamespace and p.proname !~ '^present_\d+$'
    ) as o
    cross join lateral aclexplode(o.acl) as a
    where a.grantee not in (0, o.owner)
      and a.grantee is distinct from to_regrole('cdc_owner')::oid
  loop
    execute step.statement;
  end loop;
  for step in
    select distinct format('grant %s on %s to %I', g.rights, g.what, r.name) as statement
    from (
      values
        ('usage', 'schema cdc', true, false),
        ('select', 'cdc.known_settings', true, false),
        ('select', 'cdc.publications', true, false),
        ('select', 'cdc.partitions', true, false),
        ('select', 'cdc.guards', true, false),
        ('execute', 'function cdc.guards_of(oid[])', true, false),
        ('select', 'cdc.log_parts', true, false),
        ('select', 'cdc.log_lacking', true, false),
        ('select', 'cdc.logged_tables', true, false),
        ('execute', 'function cdc.log_is_read()', true, false),
        ('execute', 'function cdc.key_index(oid)', true, false),
        ('execute', 'function cdc.naming_types()', true, false),
        ('execute', 'function cdc.partitions_below(oid)', true, false),
        ('execute', 'function cdc.places(oid[])', true, false),
        ('execute', 'function cdc.strays(oid, oid[])', true, false),
        ('execute', 'function cdc.sent_by(oid, jsonb)', true, false),
        ('execute', 'function cdc.type_details(oid)', true, false),
        ('execute', 'function cdc.table_snapshots(oid[])', true, false),
        ('execute', 'function cdc.fingerprint()', true, false),
        ('execute', 'function cdc.is_signed(bytea, bytea)', true, false),
        ('execute', 'function cdc.beacon()', false, false),
        ('execute', 'function cdc.write_wal()', false, false),
        ('select', 'cdc.ticks', true, true),
        ('execute', 'function cdc.log_lacks(oid, bool)', true, true),
        ('execute', 'function cdc.record_tick(pg_snapshot)', false, true),
        ('execute', 'function cdc.forget_ticks(pg_lsn)', false, true),
        ('select', 'cdc.logged_changes', false, true),
        ('execute', 'function cdc.reads_log()', false, true),
        ('execute', 'function cdc.purge_log(pg_snapshot)', false, true)
    ) as g (rights, what, of_both, of_log)
    cross join cdc.settings as s
    cross join lateral (
      values
        (convert_from(s.value, 'UTF8')::jsonb ->> 'drainer', false),
        (convert_from(s.value, 'UTF8')::jsonb ->> 'reader', true)
    ) as r (name, reads)
    where s.name = 'roles'
      and r.name <> ''
      and (s.slot = current_setting('cdc.slot') or exists (select from pg_roles as a where a.rolname = r.name))
      and (g.of_both or not r.reads)
      and (
        not g.of_log
        or exists (select from cdc.settings as l where l.slot = s.slot and l.name = 'logs')
      )
  loop
    execute step.statement;
  end loop;
end
$function$;
revoke all on function cdc.admit() from public;

insert into cdc.settings (slot, name, value)
values (current_setting('cdc.slot'), 'roles', convert_to(:'roles', 'UTF8'))
on conflict (slot, name) do update set value = excluded.value where settings.value is distinct from excluded.value;

do $install$
declare
  roles jsonb := (select convert_from(s.value, 'UTF8')::jsonb from cdc.known_settings as s where s.name = 'roles');
  drainer name := nullif(roles ->> 'drainer', '');
  granted jsonb := (select convert_from(s.value, 'UTF8')::jsonb from cdc.known_settings as s where s.name = 'granted');
  wanted oid[];
  known jsonb[]; -- what `cdc init` and cdc.let_read have granted to it
  readable oid[]; -- the tables that it may read by such a grant
  opened oid[]; -- the schemas that it may use by such a grant
  step record;
begin
  perform cdc.admit();

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
  known := array(
    select f.about
    from (
      select s.value from cdc.settings as s
      where s.name = 'granted' or s.name like 'granted %'
      offset 0 -- other values are no JSON
    ) as s
    cross join lateral (select convert_from(s.value, 'UTF8')::jsonb) as f (about)
    where (f.about ->> 'role')::oid = (select r.oid from pg_roles as r where r.rolname = drainer)
  );
  readable := array(
    select c.oid
    from pg_class as c
    where c.oid = any (wanted)
      and (
        not has_table_privilege(drainer, c.oid, 'select')
        or exists (select from unnest(known) as f (about) where f.about -> 'tables' @> to_jsonb(c.oid::int8))
      )
  );
  opened := array(
    select distinct c.relnamespace::oid
    from pg_class as c
    where c.oid = any (wanted)
      and (
        not has_schema_privilege(drainer, c.relnamespace, 'usage')
        or exists (select from unnest(known) as f (about) where f.about -> 'schemas' @> to_jsonb(c.relnamespace::int8))
      )
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

  delete from cdc.settings
  where slot = current_setting('cdc.slot')
    and (name like 'granted %' or name = 'granted' and drainer is null); -- all that stay are among the wanted ones
  insert into cdc.settings (slot, name, value)
  select current_setting('cdc.slot'), 'granted', convert_to(
    jsonb_build_object(
      'role', r.oid::int8, 'tables', to_jsonb(readable::int8[]), 'schemas', to_jsonb(opened::int8[])
    )::text,
    'UTF8'
  )
  from pg_roles as r
  where r.rolname = drainer
  on conflict (slot, name) do update set value = excluded.value where settings.value is distinct from excluded.value;
end
$install$;
