-- The change log: what row triggers saw, for tables or servers without logical decoding.
--
-- Append-only. A row carries its transaction's xid8 (never the row's xmin, which is a subtransaction's under a savepoint)
-- and the WAL insert LSN at which it was written: within a transaction, and for one key over all transactions, that is
-- the order of the changes. No sequence: the user's lastval() stays, and there is no cache that could reorder sessions.
-- Images are the row's own text form (record output), so each cell is what its type's output function prints under the
-- pinned settings, as in the stream; json with \u0000 or a duplicate key is text like any other.
--
-- `part` is the rotation: rows go to the current part, and another is emptied when all it holds is in the lake.

create table if not exists cdc.change_log (
  part smallint not null,
  xid xid8 not null default pg_current_xact_id(),
  lsn pg_lsn not null,
  relid oid not null,
  op "char" not null, -- I U D T; F: an image could not be made; M: a DDL message
  old text,
  new text
) partition by list (part);
comment on table cdc.change_log is 'cdc-toolkit: changes of the tables that are captured by triggers';

-- A part that somebody has detached comes back with its rows. What was written meanwhile is lost, and told by its tables.
do $install$
declare
  part record;
begin
  for part in select * from cdc.log_lacking order by name loop
    if part.relid is null then
      execute format(
        'create table cdc.%I partition of cdc.change_log %s %s',
        part.name, case part.bound when 'DEFAULT' then '(check (false))' else '' end, part.bound
      );
      continue;
    end if;
    if part.attached then
      execute format(
        'alter table cdc.change_log detach partition cdc.%I %s',
        part.name, case when part.detaching then 'finalize' else '' end
      );
    end if;
    execute format('alter table cdc.change_log attach partition cdc.%I %s', part.name, part.bound);
  end loop;
exception
  when others then
    raise exception using
      errcode = sqlstate,
      message = format(
        'cdc.%1$s cannot be a part of the change log: %2$s; run: alter table cdc.%1$s rename to %1$s_aside',
        part.name, sqlerrm
      );
end
$install$;

create table if not exists cdc.change_log_current (part smallint not null);
insert into cdc.change_log_current (part)
select 0
where not exists (select from cdc.change_log_current);

-- A tick: everything that its snapshot shows, with a WAL position at or above every commit in it.
create table if not exists cdc.tick (
  lsn pg_lsn primary key,
  snapshot pg_snapshot not null
);

revoke all on cdc.change_log, cdc.change_log_0, cdc.change_log_1, cdc.change_log_2 from public;
revoke all on cdc.change_log_none from public;
revoke all on cdc.change_log_current, cdc.tick from public;

-- Images are made with format('%s', row), which calls the output functions of types. A cast to text could be one that the
-- table's owner has created, and would run that owner's function with the rights of whoever ran `cdc init`.
--
-- The user's lock_timeout is for the user's own tables: the log is locked for the moment of a purge.
--
-- One row. Any value can be too large for its text, a small one too: a number of 10 bytes prints 131,073 digits. So all
-- that is read is read in a block that writes nothing, and takes no transaction id: one a row would make every snapshot of
-- the server slower. Only large rows are inserted in a block too. What cannot be logged becomes an F row: the user's
-- statement goes on, and the drain turns the table stale. So the first row of a table in a transaction tries, in a block,
-- whether the log can be written to: from then on it is locked, and nobody drops it before the transaction ends.
--
-- Rows of a statement are logged after all of them were changed. A trigger or function of the application that changed
-- the table meanwhile was logged before them, though its changes came later: it ran as a later command, and the newest
-- command logged of each table is kept for the transaction. What is logged behind such a one is late: instead of it goes
-- what its keys hold now. So it does for a version that is gone already. A command id may stand for two, if one
-- transaction made a version and ended it: that is taken for late too.
create or replace function cdc.log_row()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO'
set intervalstyle = 'postgres'
set timezone = 'UTC'
set bytea_output = 'hex'
set extra_float_digits = 3
set lc_monetary = 'C'
set row_security = off
set lock_timeout = 0
as $function$
declare
  latest text := 'cdc_toolkit.latest_' || tg_relid;
  before int8;
  command int8;
  late bool;
  present text;
  was text;
  became text;
  failure text;
begin
  begin
    before := coalesce(nullif(current_setting(latest, true), '')::int8, -1);
    if before < 0 then
      insert into cdc.change_log (part, lsn, relid, op) -- nothing, or there is no such part
      select c.part, '0/0', 0, 'F'
      from cdc.change_log_current as c
      where pg_partition_root(to_regclass('cdc.change_log_' || c.part)) is null;
    end if;
    command := case tg_op when 'DELETE' then old.cmax else new.cmin end::text;
    if command > before then
      perform set_config(latest, command::text, true);
    end if;
    late := command < before;
    if tg_op = 'DELETE' and not late and age(old.xmin) <= 0 then -- of this transaction, or of 2^31 ids ago
      late := old.xmin in (select cdc.own_xids());
    end if;
    if not late and tg_op <> 'DELETE' and new.xmax <> 0 then -- gone, or locked by an upsert or a key
      late := cdc.is_gone(tg_relid, new.ctid);
      perform cdc.pin();
    end if;
    if late then
      present := cdc.log_present(tg_relid, case tg_op
        when 'INSERT' then 'array[$3]'
        when 'DELETE' then 'array[$2]'
        else 'array[$2, $3]'
      end);
    end if;
    if present is null then
      was := case when tg_op <> 'INSERT' then format('%s', old) end;
      became := case when tg_op <> 'DELETE' then format('%s', new) end;
    end if;
  exception
    when others then failure := sqlstate || ' ' || sqlerrm;
  end;
  if failure is null and present is null
    and coalesce(octet_length(was), 0) + coalesce(octet_length(became), 0) < 100000
  then
    insert into cdc.change_log (part, lsn, relid, op, old, new)
    select c.part, pg_current_wal_insert_lsn(), tg_relid, tg_op::"char", was, became
    from cdc.change_log_current as c;
    if found then
      return null;
    end if;
  end if;
  begin
    if failure is not null then
      perform cdc.log_failed(tg_relid, failure);
    elsif present is null then
      insert into cdc.change_log (part, lsn, relid, op, old, new)
      values (cdc.log_part(), pg_current_wal_insert_lsn(), tg_relid, tg_op::"char", was, became);
    else
      if tg_op <> 'INSERT' then
        insert into cdc.change_log (part, lsn, relid, op, old)
        values (cdc.log_part(), pg_current_wal_insert_lsn(), tg_relid, 'D', format('%s', old));
      end if;
      execute present using cdc.log_part(), old, new;
      perform cdc.pin();
    end if;
  exception
    when others then
      perform cdc.log_failed(tg_relid, sqlstate || ' ' || sqlerrm);
  end;
  return null;
end
$function$;

-- Set again what log_row and log_rows set for themselves. What a table's owner runs may leave settings behind: a plain SET
-- outlives the SET clauses of the functions around it, and under another search_path the names that follow would be the
-- owner's. So this comes right after each reading; here and until then no name is looked up in a search_path.
create or replace function cdc.pin()
returns void
language plpgsql
as $function$
begin
  perform
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
    pg_catalog.set_config('datestyle', 'ISO', true),
    pg_catalog.set_config('intervalstyle', 'postgres', true),
    pg_catalog.set_config('timezone', 'UTC', true),
    pg_catalog.set_config('bytea_output', 'hex', true),
    pg_catalog.set_config('extra_float_digits', '3', true),
    pg_catalog.set_config('lc_monetary', 'C', true),
    pg_catalog.set_config('row_security', 'off', true),
    pg_catalog.set_config('lock_timeout', '0', true);
end
$function$;

-- Read rows of a user's table: those that `query` gives for `touched` rows ($1) and a version ($2). Only the owner of the
-- table may run it, so that whatever the server runs of the owner's while it plans the query (functions in expressions of
-- indexes and statistics) has the owner's rights and no others. For each owner there is a copy of this function that
-- belongs to the owner and runs with the owner's rights (cdc.own_reader). The owner can alter that copy, but not its body:
-- so nothing before the refusal depends on a setting, and no argument is ever null. A snapshot that is kept may show an
-- owner of before: but a change of owner updates the rows of the table and of its indexes, and then none is unchanged.
create or replace function cdc.present(relid oid, query text, touched anyarray, version tid)
returns setof anyelement
language plpgsql
as $function$
#variable_conflict use_variable
begin
  if not exists (
    select
    from pg_catalog.pg_class as c
    where c.oid operator(pg_catalog.=) relid
      and pg_catalog.pg_get_userbyid(c.relowner) operator(pg_catalog.=) current_user
      and (
        pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.=) 'read committed'
        or c.xmax::pg_catalog.text operator(pg_catalog.=) '0'
      )
  ) and not exists (
    select
    from pg_catalog.pg_index as i
    join pg_catalog.pg_class as c on c.oid operator(pg_catalog.=) i.indexrelid
    where i.indrelid operator(pg_catalog.=) relid
      and pg_catalog.pg_get_userbyid(c.relowner) operator(pg_catalog.=) current_user
      and c.xmax::pg_catalog.text operator(pg_catalog.=) '0'
  ) or pg_catalog.current_setting('row_security') operator(pg_catalog.<>) 'off' then -- a policy then is an error
    raise exception 'table % has changed its owner, or its owner the function that reads it', relid;
  end if;
  return query execute query using touched, version;
end
$function$;

-- The function that reads a table: cdc.present, or the copy that belongs to the table's owner.
create or replace function cdc.reader(relid oid)
returns text
language sql
stable
begin atomic
select case when pg_get_userbyid(c.relowner) = current_user then 'cdc.present' else 'cdc.present_' || c.relowner end
from pg_class as c
where c.oid = reader.relid;
end;

-- Make the copy of cdc.present that belongs to the owner of a table, or mend it. A role that may not give a function away
-- goes without: rows logged out of order then make the table stale.
create or replace function cdc.own_reader(relid oid)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  owner oid := (select c.relowner from pg_class as c where c.oid = relid);
  name text := 'present_' || owner;
  body text := (select p.prosrc from pg_proc as p where p.oid = 'cdc.present(oid, text, anyarray, tid)'::regprocedure);
begin
  if pg_get_userbyid(owner) = current_user or exists (
    select
    from pg_proc as p
    join pg_language as l on l.oid = p.prolang and l.lanname = 'plpgsql'
    where p.oid = to_regprocedure(format('cdc.%I(oid, text, anyarray, tid)', name))
      and p.proowner = owner
      and p.prosrc = body
      and p.prosecdef
      and p.provolatile = 'v'
      and not p.proisstrict
      and p.proconfig is null
      and p.proacl is not null
      and not exists (select from aclexplode(p.proacl) as a where a.grantee = 0)
  ) then
    return;
  end if;
  execute format(
    'create or replace function cdc.%1$I(relid oid, query text, touched anyarray, version tid) returns setof anyelement'
    ' language plpgsql security definer as %2$L;'
    ' revoke all on function cdc.%1$I(oid, text, anyarray, tid) from public;'
    ' alter function cdc.%1$I(oid, text, anyarray, tid) owner to %3$I',
    name, body, pg_get_userbyid(owner)
  );
exception
  when insufficient_privilege then null;
end
$function$;

create or replace function cdc.is_gone(relid oid, version tid)
returns bool
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  gone bool;
begin
  execute format(
    'select not exists (select from %s($1, %L, ''{}''::%s[], $2))',
    cdc.reader(relid), format('select t.* from only %s as t where t.ctid = $2', relid::regclass), relid::regclass
  )
  using relid, version into gone;
  return gone;
end
$function$;

-- All rows of a statement: the old images and the new ones. What a client sends at once may be several statements (MERGE,
-- a WITH that writes, cascades of foreign keys, triggers and functions of the application), whose triggers run in another
-- order than their changes. So behind the first one that has logged the table meanwhile goes, instead of the new images,
-- what every key of old and new rows holds now: that is right in any order, and the last one leaves it so. A key that the
-- first alone has touched is as it has logged it, unless cascades may have changed a row twice: the changes of all of them
-- are those of one statement to the trigger. Rows without a key are counted, which has no order.
--
-- The server follows a foreign key from when it is there, and a transaction that keeps its snapshot may be older. So there
-- the rows tell: what a row was between two changes is among the old images and among the new ones.
create or replace function cdc.log_rows()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO'
set intervalstyle = 'postgres'
set timezone = 'UTC'
set bytea_output = 'hex'
set extra_float_digits = 3
set lc_monetary = 'C'
set row_security = off
set lock_timeout = 0
as $function$
#variable_conflict use_variable
declare
  latest text := 'cdc_toolkit.latest_' || tg_relid;
  message text := statement_timestamp();
  current_part smallint;
  cascaded bool;
  present text;
begin
  begin
    select
      coalesce(min(c.part), 0),
      exists (
        select from pg_constraint as k
        where k.conrelid = tg_relid and k.contype = 'f' and not (k.confupdtype in ('a', 'r') and k.confdeltype in ('a', 'r'))
      )
    into current_part, cascaded
    from cdc.change_log_current as c;
    if tg_op = 'INSERT' then
      perform from new_rows limit 1;
    else
      insert into cdc.change_log (part, lsn, relid, op, old)
      select current_part, pg_current_wal_insert_lsn(), tg_relid, 'D', format('%s', r.*)
      from old_rows as r;
    end if;
    if not found then
      return null;
    end if;
    if tg_op = 'UPDATE' and not cascaded
      and current_setting('transaction_isolation') in ('repeatable read', 'serializable')
    then
      cascaded := exists (select from old_rows as o join new_rows as n on format('%s', n.*) = format('%s', o.*));
    end if;
    if cascaded or current_setting(latest, true) = message then
      present := cdc.log_present(tg_relid, format(
        '(select array_agg(row(r.*)::%s) from (%s) as r)',
        tg_relid::regclass,
        case tg_op
          when 'INSERT' then 'table new_rows'
          when 'DELETE' then 'table old_rows'
          else 'table old_rows union all table new_rows'
        end
      ));
    else
      perform set_config(latest, message, true);
    end if;
    if present is not null then
      execute present using current_part;
      perform cdc.pin();
    elsif tg_op <> 'DELETE' then
      insert into cdc.change_log (part, lsn, relid, op, new)
      select current_part, pg_current_wal_insert_lsn(), tg_relid, 'I', format('%s', r.*)
      from new_rows as r;
    end if;
  exception
    when others then
      perform cdc.log_failed(tg_relid, sqlstate || ' ' || sqlerrm);
  end;
  return null;
end
$function$;

-- The statement that logs, into part $1, what the keys of `touched` rows hold now; null for a table without a key. Keys
-- are equal as their index says: the operator may be in a schema that no search_path here names. Names are those of now:
-- the snapshot of the transaction may show others, which another table or column has taken over.
create or replace function cdc.log_present(relid oid, touched text)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (
    select format(
      'insert into cdc.change_log (part, lsn, relid, op, new)'
      ' select $1, pg_current_wal_insert_lsn(), %1$s, ''I'', format(''%%s'', r.*)'
      ' from %2$s(%1$s, %3$L, %4$s, ''(0,0)'') as r',
      c.oid,
      cdc.reader(c.oid),
      format(
        'select t.* from only %s as t where exists (select from pg_catalog.unnest($1) as n where %s)',
        c.oid::regclass,
        string_agg(
          format(
            't.%1$s operator(%2$I.%3$s) n.%1$s', pg_get_indexdef(i.indexrelid, k.place::int, false), m.nspname, o.oprname
          ),
          ' and ' order by k.place
        )
      ),
      touched
    )
    from pg_class as c
    join pg_index as i on i.indexrelid = cdc.key_index(c.oid)
    cross join lateral unnest(i.indkey::int2[], i.indclass::oid[]) with ordinality as k (attnum, class, place)
    join pg_opclass as p on p.oid = k.class
    join pg_amop as e
      on e.amopfamily = p.opcfamily and e.amopstrategy = 3 and e.amoplefttype = p.opcintype and e.amoprighttype = p.opcintype
    join pg_operator as o on o.oid = e.amopopr
    join pg_namespace as m on m.oid = o.oprnamespace
    where c.oid = log_present.relid and k.place <= i.indnkeyatts
    group by c.oid
  );
end
$function$;

create or replace function cdc.log_truncate()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set row_security = off
set lock_timeout = 0
as $function$
begin
  begin
    insert into cdc.change_log (part, lsn, relid, op)
    values (cdc.log_part(), pg_current_wal_insert_lsn(), tg_relid, 'T');
  exception
    when others then
      perform cdc.log_failed(tg_relid, sqlstate || ' ' || sqlerrm);
  end;
  return null;
end
$function$;

-- The part that is written to; 0 if somebody emptied the table that says so.
create or replace function cdc.log_part()
returns smallint
language sql
stable
begin atomic
select coalesce((select min(c.part) from cdc.change_log_current as c), 0::smallint);
end;

-- The least that can be said; if that fails too, the warning is all there is, and parity finds the difference.
create or replace function cdc.log_failed(relid oid, failure text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
begin
  insert into cdc.change_log (part, lsn, relid, op, new)
  values (cdc.log_part(), pg_current_wal_insert_lsn(), relid, 'F', failure);
exception
  when others then
    raise warning 'cdc-toolkit: a change of % is not in the change log: %', relid::regclass, failure
      using hint = format('run: cdc init, then cdc repair ''%s''', replace(relid::regclass::text, '''', '''"''"'''));
end
$function$;

-- Rows of the log are lost, or may be, that wait for a tick (what a slot sends it has sent): told as every change that could
-- not be logged, of each table that logs.
create or replace function cdc.log_doubted(doubt text)
returns void
language sql
set search_path = pg_catalog, pg_temp
as $function$
select cdc.log_failed(f.relid, doubt)
from (
  select distinct t.tgrelid as relid
  from pg_trigger as t
  join pg_proc as p on p.oid = t.tgfoid and p.pronamespace = 'cdc'::regnamespace
  where p.proname in ('log_row', 'log_rows', 'log_truncate')
) as f
where exists (select from cdc.settings as s where s.name = 'ddl_to_log') and exists (select from cdc.tick)
$function$;
revoke all on function cdc.log_doubted(text) from public;

-- Somebody empties the log, for its size perhaps.
create or replace function cdc.log_emptied()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
  if current_setting('cdc_toolkit.purging', true) is distinct from 'on' then
    perform cdc.log_doubted('somebody has removed rows of the change log');
  end if;
  return null;
end
$function$;

do $install$
declare
  part record;
begin
  for part in
    select l.relid::regclass as name
    from cdc.log_parts as l
    where not exists (
      select from pg_trigger as t where t.tgrelid = l.relid and t.tgname = 'kept' and t.tgenabled = 'A'
    )
  loop -- it waits for whoever writes to the log
    execute format(
      'create or replace trigger kept after update or delete or truncate on %s'
      || ' for each statement execute function cdc.log_emptied()', part.name
    );
    execute format('alter table %s enable always trigger kept', part.name);
  end loop;
  if found then
    perform cdc.log_doubted('nothing told whether rows of the change log were removed');
  end if;
end
$install$;

-- What the triggers of a table lack: those to be made or enabled (`keep`), and what else would log, to be taken off.
create or replace function cdc.log_lacks(relid oid, by_statement bool)
returns table (name text, clause text, enabled "char", keep bool)
language sql
stable
set search_path = pg_catalog, pg_temp
as $function$
select coalesce(w.name, t.tgname), w.clause, t.tgenabled, coalesce(w.keep, false)
from (
  values
    (
      '!cdc_row', 29, 'after insert or update or delete on %s for each row execute function cdc.log_row()',
      not by_statement and (select c.relkind <> 'p' from pg_class as c where c.oid = log_lacks.relid)
    ),
    (
      '!cdc_insert', 4,
      'after insert on %s referencing new table as new_rows for each statement execute function cdc.log_rows()',
      by_statement
    ),
    (
      '!cdc_update', 16,
      'after update on %s referencing old table as old_rows new table as new_rows'
      || ' for each statement execute function cdc.log_rows()',
      by_statement
    ),
    (
      '!cdc_delete', 8,
      'after delete on %s referencing old table as old_rows for each statement execute function cdc.log_rows()',
      by_statement
    ),
    ('!cdc_truncate', 32, 'after truncate on %s for each statement execute function cdc.log_truncate()', true)
) as w (name, kind, clause, keep)
full join (
  select t.tgname, t.tgenabled, t.tgtype
  from pg_trigger as t
  join pg_proc as p on p.oid = t.tgfoid and p.proname in ('log_row', 'log_rows', 'log_truncate')
  join pg_namespace as n on n.oid = p.pronamespace and n.nspname = 'cdc'
  where t.tgrelid = log_lacks.relid
) as t on t.tgname = w.name and t.tgtype = w.kind
where case when coalesce(w.keep, false) then t.tgenabled is distinct from 'A' else t.tgenabled is not null end
order by 4 -- whatever else would log comes off first
$function$;

-- Put the triggers on a table, or mend them; says what it did. Their names sort before all others, those of foreign keys
-- too: a trigger that changes the same row again must be logged after the change that fired it. A partitioned table has
-- none for rows: they are on each partition, and stay there when it comes or goes. That of its TRUNCATE says that it is
-- logged (cdc.guard_new).
create or replace function cdc.log_table(relid oid, by_statement bool)
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  target text;
  wanted record;
  done text[] := '{}';
begin
  select format('%I.%I', n.nspname, c.relname) into target
  from pg_class as c
  join pg_namespace as n on n.oid = c.relnamespace
  where c.oid = relid;
  for wanted in select * from cdc.log_lacks(relid, by_statement) loop
    if not wanted.keep then
      execute format('drop trigger %I on %s', wanted.name, target);
      done := done || format('dropped %s', wanted.name);
      continue;
    end if;
    if wanted.enabled is null then
      execute format('create trigger %I ' || wanted.clause, wanted.name, target);
      done := done || format('created %s', wanted.name);
    end if;
    execute format('alter table %s enable always trigger %I', target, wanted.name);
    done := done || format('enabled %s', wanted.name);
  end loop;
  perform cdc.own_reader(relid);
  return done;
end
$function$;

-- Copies of cdc.present of roles that own no logged table any more.
do $install$
declare
  copy record;
begin
  for copy in
    select p.oid::regprocedure as name
    from pg_proc as p
    where p.pronamespace = 'cdc'::regnamespace
      and p.proname = 'present_' || p.proowner
      and not exists (
        select
        from pg_trigger as t
        join pg_class as c on c.oid = t.tgrelid
        where t.tgname like '!cdc\_%' and c.relowner = p.proowner
      )
  loop
    execute format('drop function %s', copy.name);
  end loop;
end
$install$;

-- Take the triggers off a table.
create or replace function cdc.unlog_table(relid oid)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  found record;
begin
  for found in
    select t.tgname, format('%I.%I', n.nspname, c.relname) as target
    from pg_trigger as t
    join pg_class as c on c.oid = t.tgrelid
    join pg_namespace as n on n.oid = c.relnamespace
    where t.tgrelid = relid and t.tgname like '!cdc\_%'
  loop
    execute format('drop trigger %I on %s', found.tgname, found.target);
  end loop;
end
$function$;

-- Rotation: empty the parts that are no longer written to and whose rows are all visible in `drained` (a snapshot whose
-- tick is committed in the lake), and then move on to an empty one: the part that is left now is emptied next time. So
-- the part that everybody writes to is never locked, however long it takes to look through one. A part into which
-- somebody has written who is not through yet is left alone: the lock is asked for without waiting. One whose snapshot is
-- older than the last rotation may write there still, and waits for a moment. All three parts are there and attached:
-- cdc.log_is_read was asked before. Gives the parts emptied.
create or replace function cdc.purge_log(drained pg_snapshot)
returns smallint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  written smallint := cdc.log_part();
  number smallint;
  rows_left bool;
  empty_part smallint;
  purged smallint[] := '{}';
begin
  perform set_config('cdc_toolkit.purging', 'on', true);
  foreach number in array array_remove(array[0, 1, 2]::smallint[], written) loop
    execute format('select exists (select from cdc.change_log_%s)', number) into rows_left;
    if not rows_left then
      empty_part := number;
      continue;
    end if;
    execute format(
      'select exists (select from cdc.change_log_%s where not pg_visible_in_snapshot(xid, $1))', number
    ) using drained into rows_left;
    if rows_left then
      continue;
    end if;
    begin
      execute format('lock table cdc.change_log_%s in access exclusive mode nowait', number);
      execute format(
        'select exists (select from cdc.change_log_%s where not pg_visible_in_snapshot(xid, $1))', number
      ) using drained into rows_left; -- with the lock nobody else's row can be under way
      if not rows_left then
        execute format('truncate table cdc.change_log_%s', number);
        purged := purged || number;
        empty_part := number;
      end if;
    exception
      when lock_not_available then null; -- a writer or reader is in it: next time
    end;
  end loop;
  execute format('select exists (select from cdc.change_log_%s)', written) into rows_left;
  if rows_left and empty_part is not null then
    update cdc.change_log_current set part = empty_part;
    insert into cdc.change_log_current (part)
    select empty_part
    where not exists (select from cdc.change_log_current);
  end if;
  return purged;
end
$function$;

revoke all on function cdc.log_row() from public;
revoke all on function cdc.pin() from public;
revoke all on function cdc.present(oid, text, anyarray, tid) from public;
revoke all on function cdc.reader(oid) from public;
revoke all on function cdc.own_reader(oid) from public;
revoke all on function cdc.is_gone(oid, tid) from public;
revoke all on function cdc.log_present(oid, text) from public;
revoke all on function cdc.log_rows() from public;
revoke all on function cdc.log_truncate() from public;
revoke all on function cdc.log_part() from public;
revoke all on function cdc.log_failed(oid, text) from public;
revoke all on function cdc.log_emptied() from public;
revoke all on function cdc.log_lacks(oid, bool) from public;
revoke all on function cdc.log_table(oid, bool) from public;
revoke all on function cdc.unlog_table(oid) from public;
revoke all on function cdc.purge_log(pg_snapshot) from public;
