-- TRUNCATE fires no event trigger, and of a partition whose root publishes its rows it sends nothing: a trigger stands on
-- every partition of such a root, and on the root. A new one gets it in the transaction that makes it.

-- Partitions, and their roots, under a root that publishes their rows. `guarded` says that a trigger hears of it, `moved`
-- that the partition has another file than the one it was born with: it may have been truncated.
create or replace view cdc.partitions as
select
  c.oid as relid,
  array_agg(distinct r.oid) as roots,
  exists (
    select
    from pg_trigger as t
    join pg_proc as p on p.oid = t.tgfoid and p.proname = 'capture_truncate'
    join pg_namespace as n on n.oid = p.pronamespace and n.nspname = 'cdc'
    where t.tgrelid = c.oid and t.tgenabled = 'A'
  ) as guarded,
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
        when others then null; -- parity finds what is missing
      end;
  end;
  return null;
end
$function$;

-- The toolkit's own trigger on a partition or its root. No event trigger hears of it from PostgreSQL 17 on; before, those
-- that are enabled always or for replicas do, and ours take it for what it is: only who has the key can say so. The name
-- is the table's own, so that a dump of another table with its trigger can be restored beside.
create or replace function cdc.guard(relid oid)
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
  execute format(
    'create or replace trigger %I before truncate on %s for each statement execute function cdc.capture_truncate()',
    '_cdc_truncate_' || relid, relid::regclass
  );
  execute format('alter table only %s enable always trigger %I', relid::regclass, '_cdc_truncate_' || relid);
  if before <> current_setting(setting) then
    perform set_config(setting, before, true);
  end if;
  perform set_config('cdc.guarding', '', true);
end
$function$;

-- What `cdc.guarding` is set to while `cdc.guard` works in this transaction.
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

-- Guard the partitions among the given tables, roots first: later in this very transaction is too late for one that is
-- truncated in it. Only what this transaction has locked for itself, so that nobody is waited for; the drain guards the
-- rest. Gives those that have no trigger still.
create or replace function cdc.guard_new(tables oid[])
returns oid[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  unguarded oid[];
begin
  select array_agg(p.relid order by c.relkind <> 'p', p.relid) into unguarded
  from cdc.partitions as p
  join pg_class as c on c.oid = p.relid
  join pg_locks as l on l.relation = p.relid
  where p.relid = any (tables)
    and not p.guarded
    and l.locktype = 'relation'
    and l.mode = 'AccessExclusiveLock'
    and l.granted
    and l.pid = pg_backend_pid()
    and l.database = (select d.oid from pg_database as d where d.datname = current_database());
  begin
    perform cdc.guard(u) from unnest(unguarded) as u;
  exception
    when others then return unguarded;
  end;
  return '{}';
end
$function$;

revoke all on function cdc.capture_truncate() from public;
revoke all on function cdc.guard(oid) from public;
revoke all on function cdc.guarding() from public;
revoke all on function cdc.guard_new(oid[]) from public;
