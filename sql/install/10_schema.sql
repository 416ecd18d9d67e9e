-- Schema, key and settings of the toolkit. In psql: -v slot=cdc -v publications='["cdc"]' -v ignored= -v sql=keep
--
-- Idempotent: the key stays, so the signatures of DDL messages that are still in the WAL remain valid.

set cdc.slot = :'slot';
create schema if not exists cdc;
revoke all on schema cdc from public;

-- Refuse objects in the schema that another role has created. CREATE OR REPLACE and IF NOT EXISTS keep the owner. The
-- owner of a function that runs with the rights of the installer could replace it later.
do $install$
declare
  foreign_object record;
begin
  for foreign_object in
    :foreign_objects
  loop
    raise exception using
      errcode = 'insufficient_privilege',
      message = format('%s belongs to role %I', foreign_object.what, foreign_object.owner);
  end loop;
end
$install$;

-- Several lakes may capture one database, each through a slot of its own. Capture is shared. Settings of one lake have
-- the name of its slot, and settings of capture itself have an empty one. In a session of the toolkit cdc.slot is that
-- name. Where it is empty, the settings of all lakes count: an event trigger fires once for all of them.
create table if not exists cdc.settings (
  name text not null,
  value bytea not null,
  slot text not null default '',
  primary key (slot, name)
);
revoke all on cdc.settings from public;
comment on table cdc.settings is
  'cdc-toolkit: captured publications, tags of ignored commands, what is kept of SQL';

-- Earlier versions had one lake, and settings without a slot.
do $install$
begin
  if exists (
    select from pg_attribute as a
    where a.attrelid = 'cdc.settings'::regclass and a.attname = 'slot' and not a.attisdropped
  ) then
    return;
  end if;
  alter table cdc.settings add column slot text not null default '';
  alter table cdc.settings drop constraint settings_pkey, add primary key (slot, name);
  update cdc.settings set slot = coalesce(
    (select convert_from(s.value, 'UTF8')::jsonb ->> 'slot' from cdc.settings as s where s.name = 'lake'),
    current_setting('cdc.slot')
  )
  where name in ('publications', 'ignored', 'sql', 'new_tables', 'made', 'lake', 'roles', 'granted', 'ddl_to_log');
  insert into cdc.settings (slot, name, value)
  select s.slot, 'logs', ''
  from cdc.settings as s
  where s.name = 'publications' and to_regclass('cdc.change_log') is not null;
end
$install$;

-- Only functions that belong to the owner of this table read it. Earlier versions kept the key in the settings.
create table if not exists cdc.signing_key (
  name text primary key,
  value bytea not null
);
revoke all on cdc.signing_key from public;
comment on table cdc.signing_key is 'cdc-toolkit: the key that signs DDL messages and beacons, and the two padded keys';
insert into cdc.signing_key (name, value)
select s.name, s.value
from cdc.settings as s
where s.name in ('hmac_key', 'hmac_inner', 'hmac_outer')
on conflict (name) do nothing;
delete from cdc.settings where name in ('hmac_key', 'hmac_inner', 'hmac_outer');

-- What a drain reads of the settings. Row security hides the table from members of pg_read_all_data and pg_write_all_data. With
-- OFFSET the view cannot be written to.
create or replace view cdc.known_settings as
select s.name, s.value
from cdc.settings as s
where s.slot in ('', current_setting('cdc.slot', true)) or coalesce(current_setting('cdc.slot', true), '') = ''
offset 0;
revoke all on cdc.known_settings from public;

-- If the capture functions on the source are not those that `cdc init` installed, record a loss before they are
-- repaired here. It stays unknown which events they did not record.
do $install$
begin
  if to_regprocedure('cdc.fingerprint()') is not null then
    insert into cdc.settings (name, value)
    select 'lost ' || pg_current_xact_id(), convert_to('functions were not those of cdc init', 'UTF8')
    from cdc.settings as s
    where s.name = 'functions' and s.value is distinct from cdc.fingerprint()
    on conflict (slot, name) do nothing;
  end if;
end
$install$;

insert into cdc.settings (slot, name, value)
values
  (:'slot', 'publications', convert_to(:'publications', 'UTF8')),
  (:'slot', 'ignored', convert_to(:'ignored', 'UTF8')),
  (:'slot', 'sql', convert_to(:'sql', 'UTF8'))
on conflict (slot, name) do update set value = excluded.value where settings.value is distinct from excluded.value;

-- The publications that the slot is read with. Without OFFSET, members of pg_write_all_data could write to pg_publication
-- through the view, with the rights of its owner.
create or replace view cdc.publications as
select
  p.oid,
  p.pubname,
  p.puballtables,
  p.pubviaroot,
  array_remove(
    array[
      case when p.pubdelete then 'delete' end,
      case when p.pubinsert then 'insert' end,
      case when p.pubtruncate then 'truncate' end,
      case when p.pubupdate then 'update' end
    ],
    null
  ) as publishes,
  coalesce(to_jsonb(p) ->> 'pubgencols', 'n') = 's' as stored_generated, -- 18 and later
  p.xmin as stamp
from pg_publication as p
where p.pubname in (
  select jsonb_array_elements_text(convert_from(s.value, 'UTF8')::jsonb)
  from cdc.known_settings as s
  where s.name = 'publications'
)
offset 0;
revoke all on cdc.publications from public;

-- The change log (sql/changelog): the table and its parts, attached or not.
create or replace view cdc.log_parts as
select c.oid as relid, c.relkind, c.relpersistence
from pg_class as c
join pg_namespace as n on n.oid = c.relnamespace and n.nspname = 'cdc'
where c.relkind in ('r', 'p') and c.relname ~ '^change_log(_\d+)?$';
revoke all on cdc.log_parts from public;

-- Parts that the change log must have and lacks: three that are written to in turn (cdc.purge_log uses the same three),
-- and one that takes no row. While that one exists, the server refuses DETACH CONCURRENTLY for every part. That command
-- waits for no writer, and the next write of each writer would fail.
create or replace view cdc.log_lacking as
select w.name, w.bound, c.oid as relid, c.relispartition as attached, i.inhdetachpending as detaching
from (
  values
    ('change_log_0', 'FOR VALUES IN (''0'')'),
    ('change_log_1', 'FOR VALUES IN (''1'')'),
    ('change_log_2', 'FOR VALUES IN (''2'')'),
    ('change_log_none', 'DEFAULT')
) as w (name, bound)
left join pg_namespace as n on n.nspname = 'cdc'
left join pg_class as c on c.relnamespace = n.oid and c.relname = w.name
left join pg_inherits as i on i.inhrelid = c.oid and i.inhparent = to_regclass('cdc.change_log')
where i.inhdetachpending or pg_get_expr(c.relpartbound, 0) is distinct from w.bound or i.inhrelid is null;
revoke all on cdc.log_lacking from public;

-- Return whether every row of the change log gets to the lake. The lake must be the one that uses it (only one does). The
-- log must be whole. In addition, it is either drained
-- by ticks and has the trigger that records rows removed before a tick, or the slot is sent all of it.
create or replace function cdc.log_is_read()
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (
    select
      exists (select from cdc.known_settings as s where s.name = 'logs')
      and not exists (select from cdc.log_lacking)
      and not exists (select from cdc.log_parts as l where l.relpersistence <> 'p')
      and case
        when exists (select from cdc.known_settings as s where s.name = 'ddl_to_log')
          then not exists (
            select from cdc.log_parts as l
            where not exists (
              select from pg_trigger as t where t.tgrelid = l.relid and t.tgname = 'kept' and t.tgenabled = 'A'
            )
          )
        else
          exists (
            select from cdc.publications as p
            where 'insert' = any (p.publishes)
              and (
                p.puballtables
                or exists (
                  select from pg_publication_namespace as n where n.pnpubid = p.oid and n.pnnspid = 'cdc'::regnamespace
                )
                or exists (
                  select from pg_publication_rel as r
                  join cdc.log_parts as l on l.relid = r.prrelid and l.relkind = 'p'
                  where r.prpubid = p.oid
                )
              )
          )
          and not exists (
            select from pg_publication_rel as r
            join cdc.publications as p on p.oid = r.prpubid
            join cdc.log_parts as l on l.relid = r.prrelid
            where r.prqual is not null or r.prattrs is not null
          )
      end
  );
end
$function$;
revoke all on function cdc.log_is_read() from public;

-- The tables whose rows come through the change log. They have its triggers, each of them once, for every row and
-- enabled always, and the log is read. Statement triggers do not fire for rows that arrive through a subscription, or
-- through another table of an inheritance tree.
create or replace view cdc.logged_tables as
select f.relid
from (
  select
    c.oid as relid,
    c.relkind,
    c.relam,
    array_agg(format('%s %s %s', p.proname, t.tgtype, t.tgenabled) order by p.proname, t.tgtype) as triggers,
    bool_and(t.tgqual is null and cardinality(t.tgattr::int2[]) = 0) as whole
  from pg_trigger as t
  join pg_class as c on c.oid = t.tgrelid
  join pg_proc as p on p.oid = t.tgfoid
  join pg_namespace as n on n.oid = p.pronamespace and n.nspname = 'cdc'
  where t.tgenabled <> 'D' and p.proname in ('log_row', 'log_rows', 'log_truncate')
  group by c.oid, c.relkind, c.relam
) as f
where f.whole
  and cdc.log_is_read()
  and case
    when f.relkind = 'p' then f.triggers = '{log_truncate 32 A}'
    when not exists (select from pg_am as m where m.oid = f.relam and m.amhandler = 'heap_tableam_handler'::regproc)
      then false
    when f.triggers = '{log_row 29 A,log_truncate 32 A}' then true
    else
      f.triggers = '{log_rows 4 A,log_rows 8 A,log_rows 16 A,log_truncate 32 A}'
      and not exists (select from pg_subscription_rel as r where r.srrelid = f.relid)
      and not exists (select from pg_inherits as i where f.relid in (i.inhrelid, i.inhparent))
  end;
revoke all on cdc.logged_tables from public;
