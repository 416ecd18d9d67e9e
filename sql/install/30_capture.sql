-- DDL capture: event triggers that write one signed, transactional logical message per event into the WAL. Any failure
-- inside becomes a `capture_failed` message. The DDL of the user never fails because of it, and never waits long. The
-- functions use no sequence (lastval() of the user stays as it is) and open no table of the user. The only DDL that
-- they run creates the trigger on a new partition, and adds a new table to the publication.

-- Return the HMAC-SHA256 of a text, with the padded keys of 12_key.sql.
create or replace function cdc.sign(content bytea)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return encode(
    sha256(
      (select o.value from cdc.signing_key as o where o.name = 'hmac_outer')
      || sha256((select i.value from cdc.signing_key as i where i.name = 'hmac_inner') || content)
    ),
    'hex'
  );
end
$function$;

-- Return whether this source has signed a content; null if there is no key. A role that drains can verify a signature
-- with this function. It cannot read the key, so it cannot sign. Digests are compared, so the time that the comparison
-- takes does not depend on how much of a signature is right. A key that was replaced verifies what older transactions
-- signed, and nothing of a later one, whoever has the key.
create or replace function cdc.is_signed(signature bytea, content bytea)
returns boolean
language plpgsql
stable
strict
security definer
set search_path = pg_catalog, pg_temp
set row_security = off
as $function$
declare
  good boolean := sha256(convert_to(cdc.sign(content), 'UTF8')) = sha256(signature);
begin
  if good is false and exists (select from cdc.signing_key as k where k.name like 'outer before %') then
    begin
      return exists (
        select
        from cdc.signing_key as o
        join cdc.signing_key as i on i.name = replace(o.name, 'outer', 'inner')
        where o.name like 'outer before %'
          and sha256(convert_to(encode(sha256(o.value || sha256(i.value || content)), 'hex'), 'UTF8'))
          = sha256(signature)
          and (convert_from(content, 'UTF8')::jsonb ->> 'xid')::xid8 < replace(o.name, 'outer before ', '')::xid8
      );
    exception
      when others then -- the content is not one of the toolkit's
        return false;
    end;
  end if;
  return good;
end
$function$;

-- Write a signed beacon and return its nonce. Nothing in the message comes from the caller, so no role can have this
-- function sign a DDL message.
create or replace function cdc.beacon()
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set row_security = off
as $function$
declare
  nonce text := encode(uuid_send(gen_random_uuid()), 'hex');
  content text := jsonb_build_object(
    'nonce', nonce,
    'system', (select s.system_identifier::text from pg_control_system() as s),
    'xid', pg_current_xact_id()::text
  )::text;
begin
  if pg_logical_emit_message(true, 'cdc.beacon', cdc.sign(convert_to(content, 'UTF8')) || content) is null then
    raise exception 'cdc.signing_key holds no key';
  end if;
  return nonce;
end
$function$;

-- Write a WAL record that adds no message to the stream and no new row version: the lock of a row. The commit must then
-- flush.
create or replace function cdc.write_wal()
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set row_security = off
as $function$
begin
  perform from cdc.signing_key as k limit 1 for update;
end
$function$;

-- Return whether this transaction or a subtransaction of it wrote a row version that it sees, by the xmin. A row of
-- another transaction would not be seen while that is in progress. Locks do not show it: a subtransaction gives up the
-- lock on its id when its savepoint is released. Test age(id) <= 0 before, which is cheaper: a subtransaction has a later
-- id than its transaction. So has, by its 32 bits, the xmin of a row that is 2^31 ids old.
create or replace function cdc.of_this_transaction(id xid)
returns bool
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
declare
  own int8 := pg_current_xact_id()::text::int8;
  ahead int8 := (id::text::int8 - own) & 4294967295;
begin
  return ahead = 0 or (ahead < 2147483648 and pg_xact_status((own + ahead)::text::xid8) = 'in progress');
exception
  when invalid_parameter_value then
    return false; -- that id is not assigned yet, so the row is an old one
end
$function$;

-- Return the writers of the catalog rows in some table snapshots that are this transaction or its subtransactions.
create or replace function cdc.own(tables jsonb)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (
    select coalesce(jsonb_agg(w.writer), '[]')
    from (
      select jsonb_path_query(tables, 'strict $[*].stamps[*][*] ? (@ != null)') as writer
      union
      select jsonb_path_query(tables, 'strict $[*].entries[*][3]')
      union
      select jsonb_path_query(tables, '$[*].labels[*][2]')
      union
      select jsonb_path_query(tables, '$[*].triggers[*][1]') -- stored as a text
      union
      select jsonb_path_query(tables, '$[*].key_constraint[1]')
    ) as w
    where age((w.writer #>> '{}')::xid) <= 0 and cdc.of_this_transaction((w.writer #>> '{}')::xid)
  );
end
$function$;

-- Sign and write one event for the lake of cdc.slot. System id, xid and insert LSN make a replay of an old message fail
-- too. Only the toolkit's own tables are locked here, and other sessions hold those for a moment at most.
create or replace function cdc.write_message(event text, fields jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = 0
as $function$
declare
  content bytea;
  signature text;
begin
  content := convert_to(
    (
      jsonb_build_object(
        'v', 1,
        'event', event,
        'slot', nullif(current_setting('cdc.slot', true), ''),
        'system', (select s.system_identifier::text from pg_control_system() as s),
        'xid', pg_current_xact_id()::text,
        'lsn', pg_current_wal_insert_lsn()::text,
        'at', to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
        'role', session_user,
        'publications', (
          select convert_from(s.value, 'UTF8')::jsonb from cdc.known_settings as s where s.name = 'publications'
        ),
        'sql', case (select convert_from(s.value, 'UTF8') from cdc.known_settings as s where s.name = 'sql')
          when 'none' then ''
          when 'hash' then 'sha256:' || encode(sha256(convert_to(current_query(), 'UTF8')), 'hex')
          else case
            -- A statement that may contain a password is not kept: the password of a role, of a user mapping, or inside
            -- a connection string. The patterns contain no backslash, because standard_conforming_strings of the
            -- session decides what a backslash means.
            when left(current_query(), 10000) ~* (
              '(password|passwd|passfile|pwd|secret|token|connection)[[:alnum:]_]*"?'
              || '([[:space:]]|/[*]([^*]|[*][^/])*[*]/)*(--[^'']*)?(=|:=|=>|:)?[[:space:]]*(e|u&)?[''$]'
              || '|(password|passwd|passfile|pwd|secret|token)[[:space:]]*='
              || '|://[^/[:space:]:@'']+:[^@[:space:]'']+@'
            ) then ''
            else left(current_query(), 10000)
          end
        end,
        'objects', '[]'::jsonb,
        'created', '[]'::jsonb,
        'dropped', '[]'::jsonb,
        'tables', '[]'::jsonb,
        'rewrites', '[]'::jsonb,
        'unguarded', '[]'::jsonb,
        'own', cdc.own(fields -> 'tables'),
        'error', null
      )
      || fields
    )::text,
    'UTF8'
  );
  signature := cdc.sign(content);
  if signature is null then
    raise exception 'cdc.signing_key holds no key';
  end if;
  perform pg_logical_emit_message(true, 'cdc.ddl', convert_to(signature, 'UTF8') || content);
  -- Decoding places a message at the end of its record, which is the start of the next one. At equal positions, changes
  -- of the outer transaction come first. An empty message therefore separates this one from the next row.
  perform pg_logical_emit_message(true, 'cdc.apart', '');
  if exists (select from cdc.known_settings as s where s.name = 'ddl_to_log') then
    -- Without logical decoding no process reads messages from the WAL.
    insert into cdc.change_log (part, lsn, relid, op, new)
    values (cdc.log_part(), pg_current_wal_insert_lsn(), 0, 'M', signature || convert_from(content, 'UTF8'));
  end if;
end
$function$;

-- Write one event, as one message for each lake: with its publications, the tables as those send them, and as much SQL as
-- it keeps. `tables` of the fields are OIDs. To describe one may wait for a lock of the user, as long as lock_timeout of
-- the caller allows.
create or replace function cdc.emit(event text, fields jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  own text := coalesce(current_setting('cdc.slot', true), '');
  lake text;
  shown jsonb;
begin
  for lake in
    select s.slot
    from cdc.settings as s
    where s.name = 'publications'
    union all
    select ''
    where not exists (select from cdc.settings as s where s.name = 'publications')
    order by 1
  loop
    perform set_config('cdc.slot', lake, true);
    continue when event = 'ddl_command_end' and fields ->> 'tag' = any (
      string_to_array((select convert_from(s.value, 'UTF8') from cdc.known_settings as s where s.name = 'ignored'), ',')
    );
    shown := '{}';
    if fields ? 'tables' then
      shown := (
        select jsonb_build_object(
          'seen', pg_current_snapshot()::text, -- the transactions that the tables show
          'tables', coalesce(jsonb_agg(s.snapshot order by s.relid), '[]')
        )
        from cdc.table_snapshots(array(select t::oid from jsonb_array_elements_text(fields -> 'tables') as t)) as s
      );
    end if;
    perform cdc.write_message(event, fields || shown);
  end loop;
  perform set_config('cdc.slot', own, true);
end
$function$;

-- Return whether a table is one of the toolkit's own.
create or replace function cdc.is_own(identity text)
returns boolean
language sql
immutable
begin atomic
select identity ~ '^cdc[.](change_log|(settings|signing_key|tick)$)';
end;

-- Return the tables whose shape or text an event may have changed: the given ones, tables with a column of one of the
-- given types (or of a type made from it), and the partitions, inheritors and ancestors of each. Temporary tables,
-- system tables and the toolkit's own tables are left out; a table of the user in their schemas is not. The change log
-- itself is replaced by all tables that may be captured through it.
create or replace function cdc.touched(tables oid[], types oid[])
returns oid[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off -- by index alone, however many tables there are
set enable_mergejoin = off
set jit = off
as $function$
#variable_conflict use_column
begin
if exists (select from cdc.log_parts as l where l.relid = any (tables)) then
  tables := tables || cdc.publishable();
end if;
return (
with recursive given (relid) as ( -- DDL of a parent also alters the row types of its inheritors
  select unnest(tables)
  union
  select i.inhrelid
  from given as g
  join pg_inherits as i on i.inhparent = g.relid
),

affected (typ) as (
  select t.typ
  from (
    select unnest(types) as typ
    union all
    select c.reltype
    from pg_class as c
    where c.oid = any (array(select g.relid from given as g))
  ) as t
  where t.typ > 16383
  union
  select case when d.classid = 'pg_type'::regclass then d.objid else c.reltype end
  from affected as a
  join pg_depend as d on d.refclassid = 'pg_type'::regclass and d.refobjid = a.typ
  left join pg_class as c on d.classid = 'pg_class'::regclass and c.oid = d.objid
  where d.classid = 'pg_type'::regclass or c.reltype <> 0
),

seeds (relid) as (
  select g.relid from given as g
  union
  select d.objid -- by a column, or as a whole: CREATE TABLE OF
  from affected as a
  join pg_depend as d on d.refclassid = 'pg_type'::regclass and d.refobjid = a.typ
  where d.classid = 'pg_class'::regclass
),

below (relid) as (
  select s.relid from seeds as s
  union
  select i.inhrelid
  from below as b
  join pg_inherits as i on i.inhparent = b.relid
),

above (relid) as (
  select s.relid from seeds as s
  union
  select i.inhparent
  from above as u
  join pg_inherits as i on i.inhrelid = u.relid
)

select coalesce(array_agg(c.oid order by c.oid), '{}')
from pg_class as c
where c.oid in (select b.relid from below as b union select u.relid from above as u)
  and c.relkind in ('r', 'p')
  and c.relpersistence <> 't'
  and c.oid > 16383
  and not cdc.is_own(c.oid::regclass::text)
);
end
$function$;

-- Return the tables that a publication event may have added or removed.
create or replace function cdc.publishable()
returns oid[]
language sql
stable
set search_path = pg_catalog, pg_temp
begin atomic
select coalesce(array_agg(c.oid), '{}')
from pg_class as c
where c.relkind in ('r', 'p') and c.relpersistence <> 't' and c.oid > 16383;
end;

-- Return the tables that a change of the given publications affects. Only the configured publications are read. A
-- configured publication that is missing may have been renamed, or dropped with all of its entries.
create or replace function cdc.published_by(publications oid[])
returns oid[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
begin
  if publications = '{}' then
    return '{}';
  end if;
  if exists (
    select
    from cdc.settings as s
    cross join jsonb_array_elements_text(convert_from(s.value, 'UTF8')::jsonb) as n (name)
    where s.name = 'publications' and not exists (select from pg_publication as p where p.pubname = n.name)
  ) or exists (
    select from cdc.publications as p where p.oid = any (published_by.publications) and p.puballtables
  ) then
    return cdc.publishable();
  end if;
  return (
    select coalesce(array_agg(t.relid), '{}')
    from (
      select r.prrelid
      from cdc.publications as p
      join pg_publication_rel as r on r.prpubid = p.oid
      where p.oid = any (published_by.publications)
      union
      select c.oid
      from cdc.publications as p
      join pg_publication_namespace as n on n.pnpubid = p.oid
      join pg_class as c on c.relnamespace = n.pnnspid and c.relkind in ('r', 'p')
      where p.oid = any (published_by.publications)
      union
      select l.relid -- their rows come through the change log, whichever publication contains it
      from cdc.logged_tables as l
      where exists (select from cdc.publications as p where p.oid = any (published_by.publications))
    ) as t (relid)
  );
end
$function$;

-- Keep what the publications are before a command, for cdc.altered_publication after it.
create or replace function cdc.keep_publications()
returns event_trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '500ms'
as $function$
declare
  own text := coalesce(current_setting('cdc.slot', true), '');
begin
  perform set_config('cdc.publications_before', '', true); -- outside of the block, whose settings an error undoes
  begin
    perform set_config('cdc.slot', '', true);
    perform set_config(
      'cdc.publications_before', (select jsonb_object_agg(p.oid, to_jsonb(p)) from cdc.publications as p)::text, true
    );
    perform set_config('cdc.slot', own, true);
  exception
    when others then null; -- the tables of the publication are then described
  end;
end
$function$;

-- Return which operations an altered publication sends now, with its row version before and after the command. A reader
-- applies that to the tables that it knows. Return null where the tables must be described instead: if more was altered;
-- if no row was sent before the command, or none is sent after it, since a description then lacks the row filter; if it
-- begins or ceases to send the rows of a change log, which are inserted there; or if a lake reads other publications
-- beside this one, which send some tables too.
create or replace function cdc.altered_publication(altered oid[])
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
declare
  before jsonb := nullif(current_setting('cdc.publications_before', true), '')::jsonb;
begin
  return (
    select jsonb_build_object(
      'oid', p.oid::int8,
      'name', p.pubname,
      'was', (before -> p.oid::text ->> 'stamp')::int8,
      'stamp', p.stamp::text::int8,
      'publishes', p.publishes
    )
    from cdc.publications as p
    where array[p.oid] = altered
      and exists ( -- otherwise `before` may be of another command, or of the session
        select from pg_event_trigger as t
        where t.evtname = '_cdc_before' and t.evtenabled = 'A' and t.evtfoid = 'cdc.keep_publications()'::regprocedure
      )
      and (before -> p.oid::text) - '{publishes,stamp}'::text[] = to_jsonb(p) - '{publishes,stamp}'::text[]
      and before -> p.oid::text -> 'publishes' ?| '{insert,update,delete}'
      and p.publishes && '{insert,update,delete}'
      and (
        before -> p.oid::text -> 'publishes' ? 'insert' = ('insert' = any (p.publishes))
        or not exists (select from cdc.settings as s where s.name = 'logs')
      )
      and not exists (
        select from cdc.settings as s
        where s.name = 'publications'
          and convert_from(s.value, 'UTF8')::jsonb ? p.pubname
          and jsonb_array_length(convert_from(s.value, 'UTF8')::jsonb) > 1
      )
  );
end
$function$;

-- Return whether capture is switched off: by `cdc ddl pause`, or by `set cdc.capture = off` in a session of a role that
-- is a member of the installer's role. Any other role could otherwise make every table stale. Nothing is read then, but
-- each DDL command still leaves a signed mark, so a gap is always recorded.
create or replace function cdc.paused()
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (
      coalesce(current_setting('cdc.capture', true), '') = 'off'
      and pg_has_role(
        session_user, (select n.nspowner from pg_namespace as n where n.nspname = 'cdc'), 'member'
      )
    )
    or exists (select from cdc.settings as s where s.name = 'paused');
end
$function$;

-- With `new_tables = "publish"`: add the new tables that [source] names to the publication of its lake, in the
-- transaction that creates them, so that their first row is sent. Tables that a schema or a root already publishes are
-- left out. So are tables without a replica identity, because the UPDATE and DELETE of the user would fail. CREATE
-- TABLE AS creates no replica identity, so no row precedes the publication. If another session holds the publication,
-- this waits as long as lock_timeout allows. `cdc init` adds the tables that are not added here.
create or replace function cdc.publish_new(created oid[])
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
  chosen jsonb;
begin
  for chosen in
    select convert_from(s.value, 'UTF8')::jsonb
    from cdc.settings as s
    where s.name = 'new_tables'
    order by s.slot
  loop
    begin
      perform cdc.run_uncaptured(format('alter publication %I add table only %s', p.pubname, c.oid::regclass))
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
      join pg_publication as p on p.pubname = chosen ->> 'publication'
      where c.oid = any (created)
        and c.relkind in ('r', 'p')
        and c.relpersistence = 'p'
        and n.nspname not in ('information_schema', 'cdc') -- which no pattern means
        and exists (select from jsonb_array_elements_text(chosen -> 'tables') as t where n.nspname || '.' || c.relname ~ t)
        and not exists (select from jsonb_array_elements_text(chosen -> 'exclude') as t where n.nspname || '.' || c.relname ~ t)
        and not p.puballtables
        and not exists (select from pg_publication_namespace as e where e.pnpubid = p.oid and e.pnnspid = n.oid)
        and not exists (
          select from pg_publication_rel as e
          where e.prpubid = p.oid
            and (e.prrelid = c.oid or e.prrelid in (select a.relid from pg_partition_ancestors(c.oid) as a (relid)))
        )
        and exists (
          select
          from pg_index as i
          where i.indrelid = c.oid and i.indisprimary and i.indimmediate and i.indisvalid
            and not exists ( -- by which PostgreSQL 18 would refuse to update it
              select from pg_attribute as g where g.attrelid = c.oid and g.attnum = any (i.indkey) and g.attgenerated <> ''
            )
        );
    exception
      when others then null; -- `cdc status` lists the tables that are not captured
    end;
  end loop;
end
$function$;

-- Let the roles that drain read new tables that are published, and partitions of a root that they read. Let the owner of
-- the log's functions name the type of a logged table that was moved to another schema, and read one that has a new
-- owner.
create or replace function cdc.let_read(tables oid[], created oid[])
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $function$
declare
  granted record;
begin
  if exists (select from pg_class as c where c.oid = any (tables) and c.relhastriggers) then
    begin
      perform cdc.run_uncaptured(format('grant usage on schema %I to %I', f.nspname, f.rolname))
      from (
        select distinct n.nspname, r.rolname
        from pg_trigger as t
        join pg_class as c on c.oid = t.tgrelid
        join pg_namespace as n on n.oid = c.relnamespace
        join pg_proc as p on p.oid = t.tgfoid and p.pronamespace = 'cdc'::regnamespace
        join pg_roles as r on r.oid = p.proowner
        where t.tgrelid = any (tables) and t.tgname like '!cdc\_%' and not has_schema_privilege(r.oid, n.oid, 'usage')
      ) as f;
      perform cdc.run_uncaptured(format('select cdc.own_reader(%s)', c.oid)) -- for a new owner
      from pg_trigger as t
      join pg_class as c on c.oid = t.tgrelid
      join pg_proc as p on p.oid = t.tgfoid and p.pronamespace = 'cdc'::regnamespace
      where t.tgrelid = any (tables)
        and t.tgname in ('!cdc_row', '!cdc_insert')
        and c.relowner <> p.proowner
        and not exists (
          select from pg_proc as r where r.pronamespace = p.pronamespace and r.proname = 'present_' || c.relowner
        );
    exception
      when others then null; -- rows that are logged out of order then make the table stale
    end;
  end if;
  if not exists (
    select from cdc.settings as s where s.name = 'roles' and convert_from(s.value, 'UTF8')::jsonb ->> 'drainer' <> ''
  ) then
    return;
  end if;
  for granted in
    select
      s.slot,
      c.oid as relid,
      d.oid as role,
      case when has_schema_privilege(d.oid, n.oid, 'usage') then '[]' else jsonb_build_array(n.oid::int8) end as schemas,
      format('grant select on table %s to %I', c.oid::regclass, d.rolname)
      || case
        when has_schema_privilege(d.oid, n.oid, 'usage') then ''
        else format('; grant usage on schema %I to %I', n.nspname, d.rolname)
      end as statement
    from cdc.settings as s
    join pg_roles as d on d.rolname = convert_from(s.value, 'UTF8')::jsonb ->> 'drainer'
    join pg_class as c on c.oid = any (tables) and c.relkind in ('r', 'p') and c.relpersistence = 'p'
    join pg_namespace as n on n.oid = c.relnamespace
    where s.name = 'roles'
      and not has_table_privilege(d.oid, c.oid, 'select')
      and case
        when c.relispartition then has_table_privilege(d.oid, pg_partition_root(c.oid), 'select')
        else
          c.oid = any (created)
          and exists (
            select
            from cdc.settings as m
            cross join jsonb_array_elements_text(convert_from(m.value, 'UTF8')::jsonb) as f (name)
            join pg_publication as p on p.pubname = f.name
            where m.slot = s.slot
              and m.name = 'publications'
              and (
                p.puballtables
                or exists (select from pg_publication_rel as e where e.prpubid = p.oid and e.prrelid = c.oid)
                or exists (select from pg_publication_namespace as e where e.pnpubid = p.oid and e.pnnspid = n.oid)
              )
          )
      end
  loop
    perform cdc.run_uncaptured(granted.statement);
    insert into cdc.settings (slot, name, value) -- for cdc.withdraw
    select granted.slot, 'granted ' || granted.relid, convert_to(
      jsonb_build_object(
        'role', granted.role::int8, 'tables', jsonb_build_array(granted.relid::int8), 'schemas', granted.schemas
      )::text,
      'UTF8'
    )
    on conflict (slot, name) do update set value = excluded.value;
  end loop;
exception
  when others then null; -- a check and a copy name the table that they may not read
end
$function$;

create or replace function cdc.capture_command()
returns event_trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set standard_conforming_strings = on
set row_security = off
set plan_cache_mode = force_generic_plan -- planning costs more than execution
set enable_seqscan = off -- by index, however many tables there are
set jit = off
set lock_timeout = '500ms' -- below deadlock_timeout: this gives way before the server chooses a victim
as $function$
declare
  own text := coalesce(current_setting('cdc.slot', true), '');
  captured oid[];
  objects jsonb;
  created oid[];
  tables oid[];
  schemas oid[];
  published_schemas oid[];
  types oid[];
  touched oid[];
  altered oid[];
  publication jsonb;
  unguarded oid[] := '{}';
  context text;
begin
  get diagnostics context = pg_context;
  <<work>>
  begin
    perform set_config('cdc.slot', '', true); -- what concerns any lake; a SET clause is for superusers only
    if coalesce(current_setting('cdc.guarding', true), '') <> '' and current_setting('cdc.guarding') = cdc.guarding() then
      exit work;
    end if;
    if cdc.paused() then
      select jsonb_agg(
        jsonb_build_object(
          'type', d.object_type,
          'identity', d.object_identity,
          'relid', case when d.classid = 'pg_class'::regclass then d.objid::int8 end,
          'subid', d.objsubid
        )
      )
      into objects
      from pg_event_trigger_ddl_commands() as d
      where d.classid is not null
        and not (d.in_extension and d.classid = 'pg_proc'::regclass)
        and coalesce(d.schema_name, '') <> 'pg_temp'
        and ( -- in the schema of capture: what is not the toolkit's
          d.schema_name is distinct from 'cdc'
          or d.command_tag ~ ' (TABLE|TYPE|INTO)' and not cdc.is_own(d.object_identity)
        );
      if objects is not null then
        perform cdc.emit('capture_skipped', jsonb_build_object('tag', tg_tag, 'objects', objects));
      end if;
      exit work;
    end if;
    if (
      select bool_and(tg_tag = any (string_to_array(convert_from(s.value, 'UTF8'), ',')))
      from cdc.settings as s
      where s.name = 'ignored'
    ) then
      exit work;
    end if;
    if tg_tag like '%PUBLICATION' then
      captured := array(select p.oid from cdc.publications as p);
    end if;
    select
      jsonb_agg(
        jsonb_build_object(
          'type', d.object_type,
          'identity', d.object_identity,
          'relid', case when d.classid = 'pg_class'::regclass then d.objid::int8 end,
          'subid', d.objsubid
        )
      ),
      coalesce(
        array_agg(d.objid) filter (
          where d.object_type = 'table' and d.command_tag in ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO')
        ),
        '{}'
      ),
      coalesce(array_agg(coalesce(o.relid, d.objid)) filter (
        where o.relid is not null or d.classid = 'pg_class'::regclass
      ), '{}'),
      array_agg(d.objid) filter (where d.classid = 'pg_namespace'::regclass and d.command_tag <> 'CREATE SCHEMA'),
      array_agg(o.schema) filter (where o.schema is not null),
      coalesce(array_agg(d.objid) filter (where d.classid = 'pg_type'::regclass), '{}'),
      coalesce(array_agg(d.objid) filter (where d.object_type = 'publication'), '{}')
    into objects, created, tables, schemas, published_schemas, types, altered
    from pg_event_trigger_ddl_commands() as d
    cross join lateral ( -- no joins: with many tables they would read whole catalogs
      select
        case d.classid
          when 'pg_class'::regclass then (select i.indrelid from pg_index as i where i.indexrelid = d.objid)
          when 'pg_constraint'::regclass then (select k.conrelid from pg_constraint as k where k.oid = d.objid)
          when 'pg_publication_rel'::regclass then (select r.prrelid from pg_publication_rel as r where r.oid = d.objid)
          when 'pg_trigger'::regclass then ( -- of the change log: changes before it was replaced may be missing
            select t.tgrelid
            from pg_trigger as t
            join pg_proc as p on p.oid = t.tgfoid
            where t.oid = d.objid and (t.tgname like '!cdc\_%' or p.pronamespace = 'cdc'::regnamespace)
          )
        end as relid,
        case d.classid
          when 'pg_publication_namespace'::regclass
            then (select n.pnnspid from pg_publication_namespace as n where n.oid = d.objid)
        end as schema,
        case d.classid
          when 'pg_publication_rel'::regclass then (select r.prpubid from pg_publication_rel as r where r.oid = d.objid)
          when 'pg_publication_namespace'::regclass
            then (select n.pnpubid from pg_publication_namespace as n where n.oid = d.objid)
        end as publication
      offset 0
    ) as o
    where (o.publication is null or captured is null or o.publication = any (captured))
      and d.classid is not null
      and not (d.in_extension and d.classid = 'pg_proc'::regclass) -- the script may create a thousand
      and coalesce(d.schema_name, '') <> 'pg_temp'
      and ( -- in the schema of capture: what is not the toolkit's
        d.schema_name is distinct from 'cdc'
        or d.command_tag ~ ' (TABLE|TYPE|INTO)' and not cdc.is_own(d.object_identity)
      );

    if objects is null then
      exit work;
    end if;
    if schemas is not null or published_schemas is not null then
      tables := tables || array(
        select c.oid from pg_class as c where c.relkind in ('r', 'p') and c.relnamespace = any (schemas || published_schemas)
      );
      types := types || array(select t.oid from pg_type as t where t.typnamespace = any (schemas));
    end if;
    if tg_tag = 'ALTER EXTENSION' then -- SET SCHEMA moves its tables and types, and names the extension only
      select
        tables || coalesce(array_agg(m.objid) filter (where m.classid = 'pg_class'::regclass), '{}'),
        types || coalesce(array_agg(m.objid) filter (where m.classid = 'pg_type'::regclass), '{}')
      into tables, types
      from pg_event_trigger_ddl_commands() as d
      join pg_depend as m on m.refclassid = d.classid and m.refobjid = d.objid and m.deptype = 'e'
      where d.classid = 'pg_extension'::regclass and m.classid in ('pg_class'::regclass, 'pg_type'::regclass);
    end if;
    if tg_tag like '%SUBSCRIPTION' then -- its rows fire no statement triggers, and DROP SUBSCRIPTION names no table
      tables := tables || array(
        select r.srrelid
        from pg_event_trigger_ddl_commands() as d
        join pg_subscription_rel as r on r.srsubid = d.objid
        join pg_trigger as t on t.tgrelid = r.srrelid and t.tgname like '!cdc\_%'
        where d.classid = 'pg_subscription'::regclass
      );
    end if;
    if altered <> '{}' and tg_tag <> 'CREATE PUBLICATION' then
      publication := cdc.altered_publication(altered);
      if publication is null then
        tables := tables || cdc.published_by(altered);
      end if;
    end if;
    if tg_tag = 'ALTER TABLE'
      and exists (select from pg_class as c where c.oid = any (tables) and c.relkind = 'p')
    then
      -- DETACH PARTITION names only the parent. The pg_class row of the child was written by this transaction, so all
      -- such tables are added. A few more tables than needed do no harm.
      tables := tables || coalesce((
        select array_agg(c.oid)
        from pg_class as c
        where c.relkind in ('r', 'p') and age(c.xmin) <= 0 and cdc.of_this_transaction(c.xmin)
      ), '{}');
    end if;
    touched := cdc.touched(tables, types);
    tables := touched;
    if tables = '{}' and not (objects @> '[{"type": "publication"}]' or objects @> '[{"type": "type"}]') then
      exit work;
    end if;
    if created <> '{}' and exists (select from cdc.settings as s where s.name = 'new_tables') then
      perform cdc.publish_new(created);
    end if;
    if exists (select from pg_class as c where c.oid = any (tables) and (c.relispartition or c.relkind = 'p')) then
      unguarded := cdc.guard_new(tables);
    end if;
    if created <> '{}' or tg_tag = 'ALTER TABLE' then
      perform cdc.let_read(tables, created);
    end if;
    perform cdc.emit('ddl_command_end', jsonb_build_object(
      'tag', tg_tag,
      'nested', strpos(context, chr(10)) > 0, -- run by a function or trigger, not by the text that the client sent
      'objects', objects,
      'unguarded', to_jsonb(unguarded::int8[]),
      'created', (select coalesce(jsonb_agg(r::int8), '[]') from unnest(created) as r where r = any (tables)),
      'tables', to_jsonb(tables::int8[])
    ) || case when publication is null then '{}' else jsonb_build_object('publication', publication) end);
  exception
    when others then
      begin
        perform cdc.capture_failed(tg_tag, sqlstate || ' ' || sqlerrm, objects, touched);
      exception
        when others then null; -- the catalog comparison of the next drain finds the change
      end;
  end;
  perform set_config('cdc.slot', own, true);
end
$function$;

create or replace function cdc.capture_drop()
returns event_trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set standard_conforming_strings = on
set row_security = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set lock_timeout = '500ms'
as $function$
declare
  own text := coalesce(current_setting('cdc.slot', true), '');
  objects jsonb;
  dropped oid[];
  tables oid[];
  types oid[];
  touched oid[];
begin
  <<work>>
  begin
    perform set_config('cdc.slot', '', true); -- what concerns any lake; a SET clause is for superusers only
    if cdc.paused() then
      select jsonb_agg(
        jsonb_build_object(
          'type', d.object_type,
          'identity', d.object_identity,
          'relid', case when d.classid = 'pg_class'::regclass then d.objid::int8 end,
          'subid', d.objsubid
        )
      )
      into objects
      from pg_event_trigger_dropped_objects() as d
      where not d.is_temporary
        and (
          d.schema_name is distinct from 'cdc'
          or d.object_type in ('table', 'table column') and not cdc.is_own(d.object_identity)
        );
      if objects is not null then
        perform cdc.emit('capture_skipped', jsonb_build_object('tag', tg_tag, 'objects', objects));
      end if;
      exit work;
    end if;
    select
      jsonb_agg(
        jsonb_build_object(
          'type', d.object_type,
          'identity', d.object_identity,
          'relid', case when d.classid = 'pg_class'::regclass then d.objid::int8 end,
          'subid', d.objsubid
        )
      ),
      coalesce(array_agg(d.objid) filter (where d.object_type = 'table'), '{}'),
      coalesce(array_agg(
        case
          when d.object_type = 'table column' then d.objid
          else ( -- by the catalog: to_regclass needs a right on the schema
            select c.oid
            from pg_class as c
            join pg_namespace as n on n.oid = c.relnamespace
            where n.nspname = d.address_names[1] and c.relname = d.address_names[2]
          )
        end
      ) filter (
        where d.object_type in ('table column', 'table constraint', 'default value', 'publication relation', 'trigger')
      ), '{}')
      || coalesce((
        select array_agg(c.oid)
        from pg_class as c
        join pg_namespace as n on n.oid = c.relnamespace
        where c.relkind in ('r', 'p')
          and n.nspname = any (
            array_agg(d.address_names[1]) filter (where d.object_type = 'publication namespace')
          )
      ), '{}')
      || cdc.published_by(coalesce(array_agg(d.objid) filter (where d.object_type = 'publication'), '{}'))
      || case when bool_or(d.object_type = 'index') then coalesce((
        -- The index is no longer in the catalog, so its table is unknown: take all candidates. The session has a lock on
        -- the table of an index that it dropped.
        select array_agg(c.oid)
        from pg_locks as l
        join pg_class as c on c.oid = l.relation
        where l.locktype = 'relation'
          and l.pid = pg_backend_pid()
          and c.relreplident = 'i'
          and not exists (select from pg_index as i where i.indrelid = c.oid and i.indisreplident)
      ), '{}') else '{}' end,
      (
        select array_agg(c.reltype)
        from pg_class as c
        where c.oid = any (array_agg(d.objid) filter (where d.object_type = 'composite type column'))
      )
    into objects, dropped, tables, types
    from pg_event_trigger_dropped_objects() as d
    where not d.is_temporary
      and (
        d.schema_name is distinct from 'cdc'
        or d.object_type in ('table', 'table column') and not cdc.is_own(d.object_identity)
      )
      and d.object_type in (
        'table', 'table column', 'table constraint', 'default value', 'composite type column', 'index', 'type', 'schema',
        'publication', 'publication relation', 'publication namespace', 'trigger'
      )
      and (d.object_type <> 'trigger' or d.original and d.address_names[3] like '!cdc\_%') -- of the change log
      and (
        d.object_type not like 'publication %'
        or d.address_args[1] in (
          select jsonb_array_elements_text(convert_from(s.value, 'UTF8')::jsonb)
          from cdc.settings as s
          where s.name = 'publications'
        )
      );

    if objects is null then
      exit work;
    end if;
    tables := cdc.touched(array_remove(tables, null), types);
    touched := tables || dropped;
    if tables = '{}' and dropped = '{}' and not objects @> '[{"type": "publication"}]' then
      exit work;
    end if;
    perform cdc.emit('sql_drop', jsonb_build_object(
      'tag', tg_tag,
      'objects', objects,
      'dropped', to_jsonb(dropped::int8[]),
      'tables', to_jsonb(tables::int8[])
    ));
    -- Where a column took the name of a dropped one, a row that another event trigger wrote before this one fired looks
    -- like a row with the columns before. In the change log, whose images have no names, any new column takes its place.
    if exists (
      select from pg_event_trigger as t
      where t.evtname < '_cdc_0_drop' and t.evtevent = 'sql_drop' and t.evtenabled <> 'D'
    ) and exists (
      select
      from pg_event_trigger_dropped_objects() as d
      join pg_attribute as a on a.attrelid = d.objid and not a.attisdropped
      where d.object_type = 'table column'
        and (
          a.attname = d.address_names[3]
          or a.attnum > d.objsubid
          and age(a.xmin) <= 0
          and cdc.of_this_transaction(a.xmin)
          and exists (select from pg_trigger as t where t.tgrelid = d.objid and t.tgname like '!cdc\_%')
        )
    ) then
      perform cdc.capture_failed(tg_tag, 'another event trigger fires before that of capture', objects, tables);
    end if;
  exception
    when others then
      begin
        perform cdc.capture_failed(tg_tag, sqlstate || ' ' || sqlerrm, objects, touched);
      exception
        when others then null; -- the catalog comparison of the next drain finds the change
      end;
  end;
  perform set_config('cdc.slot', own, true);
end
$function$;

create or replace function cdc.capture_rewrite()
returns event_trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set standard_conforming_strings = on
set row_security = off
set plan_cache_mode = force_generic_plan
set jit = off
set lock_timeout = '500ms'
as $function$
declare
  relid oid;
  objects jsonb;
  empty boolean;
begin
  begin
    select
      c.oid,
      -- The table is locked exclusively, and a heap without a page has no row, not even one of this transaction.
      c.relkind = 'r' and c.relam = 2 and pg_relation_size(c.oid, 'main') = 0,
      jsonb_build_array(
        jsonb_build_object('type', 'table', 'identity', format('%I.%I', n.nspname, c.relname), 'relid', c.oid::int8, 'subid', 0)
      )
    into relid, empty, objects
    from pg_class as c
    join pg_namespace as n on n.oid = c.relnamespace
    where c.oid = pg_event_trigger_table_rewrite_oid()
      and c.relpersistence <> 't'
      and c.oid > 16383;
    if relid is null then
      return;
    end if;
    if cdc.paused() then
      perform cdc.emit('capture_skipped', jsonb_build_object('tag', tg_tag, 'objects', objects));
      return;
    end if;
    perform cdc.emit('table_rewrite', jsonb_build_object(
      'tag', tg_tag,
      'objects', objects,
      'rewrites', jsonb_build_array(
        jsonb_build_object('relid', relid::int8, 'reason', pg_event_trigger_table_rewrite_reason(), 'empty', empty)
      )
    ));
  exception
    when others then
      begin
        perform cdc.capture_failed(tg_tag, sqlstate || ' ' || sqlerrm, objects, array[relid]);
      exception
        when others then null; -- the catalog comparison of the next drain finds the change
      end;
  end;
end
$function$;

-- Record a failure with the least possible work. `touched` are the tables concerned, null if they are not known. If the
-- message cannot be signed or logged, it is written unsigned, and the drain records it as forged. A mark is also left
-- in the settings. It changes the state of capture, so the next drain makes every table stale.
create or replace function cdc.capture_failed(tag text, failure text, objects jsonb, touched oid[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = 0
as $function$
begin
  begin
    perform cdc.emit('capture_failed', jsonb_build_object(
      'tag', tag, 'error', failure, 'objects', coalesce(objects, '[]'), 'touched', to_jsonb(touched::int8[])
    ));
  exception
    when others then
      failure := failure || '; ' || sqlstate || ' ' || sqlerrm;
      perform pg_logical_emit_message(
        true,
        'cdc.ddl',
        repeat('0', 64) || jsonb_build_object('v', 1, 'event', 'capture_failed', 'tag', tag, 'error', failure)::text
      );
      insert into cdc.settings (name, value)
      values ('lost ' || pg_current_xact_id(), convert_to(tag || ': ' || failure, 'UTF8'))
      on conflict do nothing;
  end;
end
$function$;

revoke all on function cdc.of_this_transaction(xid) from public;
revoke all on function cdc.own(jsonb) from public;
revoke all on function cdc.sign(bytea) from public;
revoke all on function cdc.is_signed(bytea, bytea) from public;
revoke all on function cdc.beacon() from public;
revoke all on function cdc.write_wal() from public;
revoke all on function cdc.write_message(text, jsonb) from public;
revoke all on function cdc.emit(text, jsonb) from public;
revoke all on function cdc.is_own(text) from public;
revoke all on function cdc.touched(oid[], oid[]) from public;
revoke all on function cdc.publishable() from public;
revoke all on function cdc.published_by(oid[]) from public;
revoke all on function cdc.keep_publications() from public;
revoke all on function cdc.altered_publication(oid[]) from public;
revoke all on function cdc.publish_new(oid[]) from public;
revoke all on function cdc.let_read(oid[], oid[]) from public;
revoke all on function cdc.capture_failed(text, text, jsonb, oid[]) from public;
revoke all on function cdc.capture_command() from public;
revoke all on function cdc.capture_drop() from public;
revoke all on function cdc.capture_rewrite() from public;
revoke all on function cdc.paused() from public;
