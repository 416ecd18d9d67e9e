-- The triggers that report TRUNCATE of a partition. It fires no event trigger, and for a partition whose root publishes
-- its rows it sends nothing. Every partition of such a root, and the root itself, therefore has a trigger. A new
-- partition gets it in the transaction that creates it.

-- Partitions, and their roots, under a root that publishes their rows. `guarded` means that a trigger captures
-- TRUNCATE. `moved` means that the partition has another file than the one it was created with: it may have been
-- truncated.
create or replace view cdc.partitions as
select
  c.oid as relid,
  array_agg(distinct r.oid) as roots,
  exists (select from cdc.guards as g where g.relid = c.oid) as guarded,
  c.relkind = 'r' and c.relfilenode <> c.oid as moved
from pg_class as c
cross join lateral pg_partition_ancestors(c.oid) as a (relid)
join pg_class as r on r.oid = a.relid and r.relkind = 'p'
join cdc.publications as p on p.pubviaroot
where (c.relispartition or c.relkind = 'p')
  and (
    p.puballtables
    or exists (select from pg_publication_rel as e where e.prpubid = p.oid and e.prrelid = r.oid)
    or exists (select from pg_publication_namespace as e where e.pnpubid = p.oid and e.pnnspid = r.relnamespace)
  )
group by c.oid;
revoke all on cdc.partitions from public;

create or replace function cdc.capture_truncate()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
as $function$
declare
  objects jsonb;
begin
  begin
    objects := jsonb_build_array(
      jsonb_build_object(
        'type', 'table', 'identity', format('%I.%I', tg_table_schema, tg_table_name), 'relid', tg_relid::int8, 'subid', 0
      )
    );
    perform cdc.emit('table_truncate', jsonb_build_object('tag', 'TRUNCATE TABLE', 'objects', objects));
  exception
    when others then
      begin
        perform cdc.capture_failed('TRUNCATE TABLE', sqlstate || ' ' || sqlerrm, objects, array[tg_relid]);
      exception
        when others then null; -- parity finds the difference
      end;
  end;
  return null;
end
$function$;

-- Run DDL of the toolkit without capturing it. From PostgreSQL 17 on, no event trigger fires for it. In earlier
-- versions, event triggers that are enabled always or for replicas still fire. Those of the toolkit recognize its own
-- DDL by a signature, which only the holder of the key can make.
drop function if exists cdc.unheard(text); -- its name in earlier versions
create or replace function cdc.run_uncaptured(command text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  newer boolean := current_setting('event_triggers', true) is not null;
  setting text := case when newer then 'event_triggers' else 'session_replication_role' end;
  before text := current_setting(setting);
begin
  perform set_config('cdc.guarding', cdc.guarding(), true);
  if (select r.rolsuper from pg_roles as r where r.rolname = current_user) then
    perform set_config(setting, case when newer then 'off' else 'replica' end, true);
  end if;
  execute command;
  if before <> current_setting(setting) then
    perform set_config(setting, before, true);
  end if;
  perform set_config('cdc.guarding', '', true);
end
$function$;

-- Create the trigger on a partition or its root. The name contains the OID of the table, so the dump of another table
-- with its trigger can be restored beside it.
create or replace function cdc.guard(relid oid)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
begin
  perform cdc.run_uncaptured(format(
    'create or replace trigger %1$I before truncate on %2$s for each statement execute function cdc.capture_truncate();'
    ' alter table only %2$s enable always trigger %1$I',
    '_cdc_truncate_' || relid, relid::regclass
  ));
end
$function$;

-- Return the value of `cdc.guarding` while this transaction runs DDL of the toolkit.
create or replace function cdc.guarding()
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return cdc.sign(convert_to('guarding ' || pg_current_xact_id(), 'UTF8'));
end
$function$;

-- Add triggers to new partitions, roots first, and add the triggers of the change log to partitions of a logged root.
-- Later in this transaction would be too late for changes that the transaction makes itself. Only tables that this
-- transaction has locked are changed, so no session waits; the drain adds the rest. Return the partitions without a
-- trigger. The snapshot of a partition shows if it is not logged. Row triggers are never put on a root: PostgreSQL
-- would clone them as the role that creates the partition. That fails if the role may not create triggers, or if a
-- trigger of that name already exists.
create or replace function cdc.guard_new(tables oid[])
returns oid[]
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
  own oid[];
  unguarded oid[];
begin
  select array_agg(l.relation) into own
  from pg_locks as l
  where l.relation = any (tables)
    and l.locktype = 'relation'
    and l.mode = 'AccessExclusiveLock'
    and l.granted
    and l.pid = pg_backend_pid()
    and l.database = (select d.oid from pg_database as d where d.datname = current_database());
  if own is null then
    return '{}';
  end if;
  begin
    perform cdc.run_uncaptured(format('select cdc.log_table(%s, false)', c.oid))
    from pg_class as c
    where c.oid = any (own)
      and c.relkind = 'r'
      and exists (
        select from pg_partition_ancestors(c.oid) as a (relid) join cdc.logged_tables as l on l.relid = a.relid
        where a.relid <> c.oid
      )
      and c.oid not in (select l.relid from cdc.logged_tables as l);
  exception
    when others then null;
  end;
  select array_agg(p.relid order by c.relkind <> 'p', p.relid) into unguarded
  from cdc.partitions as p
  join pg_class as c on c.oid = p.relid
  where p.relid = any (own) and not p.guarded;
  begin
    perform cdc.guard(u) from unnest(unguarded) as u;
  exception
    when others then return unguarded;
  end;
  return '{}';
end
$function$;

revoke all on function cdc.capture_truncate() from public;
revoke all on function cdc.run_uncaptured(text) from public;
revoke all on function cdc.guard(oid) from public;
revoke all on function cdc.guarding() from public;
revoke all on function cdc.guard_new(oid[]) from public;
