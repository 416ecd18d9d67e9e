-- The change log holds what row triggers saw, for tables or servers without logical decoding.
--
-- The log is append-only. A row carries the xid8 of its transaction, never the xmin of the row, which is that of a
-- subtransaction under a savepoint. It also carries the WAL insert LSN at which it was written. Within a transaction,
-- and for one key over all transactions, that is the order of the changes. There is no sequence: lastval() of the user
-- stays as it is, and no cache can reorder sessions. Images are the row's own text form (record output). Each cell is
-- therefore what the output function of its type prints under the pinned settings, as in the stream. json with \u0000
-- or with a duplicate key is text like any other.
--
-- `part` serves the rotation: rows go to the current part, and another part is emptied when all of its rows are in the
-- lake.

create table if not exists cdc.change_log (
  part smallint not null,
  xid xid8 not null default pg_current_xact_id(),
  lsn pg_lsn not null,
  relid oid not null,
  op "char" not null, -- I U D T; F: an image could not be made; M: a DDL message; O: cdc.log_order
  old text,
  new text
) partition by list (part);
comment on table cdc.change_log is 'cdc-toolkit: changes of the tables that are captured by triggers';

-- Attach a part that another session has detached, with its rows. What was written meanwhile is lost: its tables record
-- that.
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

-- A publication of the user for all tables refuses updates of a table without identity.
create table if not exists cdc.change_log_current (part smallint not null);
do $install$
begin
  if (select c.relreplident <> 'f' from pg_class as c where c.oid = 'cdc.change_log_current'::regclass) then
    alter table cdc.change_log_current replica identity full;
  end if;
end
$install$;
insert into cdc.change_log_current (part)
select 0
where not exists (select from cdc.change_log_current);

-- A tick: everything that its snapshot shows, with a WAL position at or above every commit in it.
create table if not exists cdc.tick (
  lsn pg_lsn primary key,
  snapshot pg_snapshot not null
);

create or replace view cdc.ticks as
select t.lsn, t.snapshot
from cdc.tick as t
offset 0; -- so that it cannot be written to
revoke all on cdc.ticks from public;

-- Record a tick at the current position, and return that position.
create or replace function cdc.record_tick(shown pg_snapshot)
returns pg_lsn
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set row_security = off
as $function$
declare
  made pg_lsn;
begin
  insert into cdc.tick (lsn, snapshot) values (pg_current_wal_insert_lsn(), shown) returning lsn into made;
  return made;
end
$function$;

-- Delete the ticks below one that is in the lake.
create or replace function cdc.forget_ticks(below pg_lsn)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set row_security = off
as $function$
begin
  delete from cdc.tick as t where t.lsn < below;
end
$function$;
revoke all on function cdc.record_tick(pg_snapshot) from public;
revoke all on function cdc.forget_ticks(pg_lsn) from public;

revoke all on cdc.change_log, cdc.change_log_0, cdc.change_log_1, cdc.change_log_2 from public;
revoke all on cdc.change_log_none from public;
revoke all on cdc.change_log_current, cdc.tick from public;

-- What a drain reads. Row security hides the log itself from members of pg_read_all_data, and this view is an error for
-- them: whoever reads it must be allowed to run the function.
create or replace function cdc.reads_log()
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return true;
end
$function$;

create or replace view cdc.logged_changes as
select l.part, l.xid, l.lsn, l.relid, l.op, l.old, l.new
from cdc.change_log as l
where cdc.reads_log()
offset 0; -- so that it cannot be written to
revoke all on function cdc.reads_log() from public;
revoke all on cdc.logged_changes from public;

-- Images are made with record_out(row), which calls the output functions of the types. A cast of a row to text could be
-- one that the owner of the table has created. It would run code of that owner with the rights of the role that ran `cdc
-- init`. record_out keeps what it looked up for the next row, which format('%s', row) does not.
--
-- The user's lock_timeout is meant for the user's own tables. The log is locked only for the moment of a purge.
--
-- Log one row. Any value can be too large for its text, even a small one: a number of 10 bytes prints 131,073 digits.
-- All reading is therefore done in a block that writes nothing. Such a block takes no transaction id; one id per row
-- would make every snapshot of the server slower. Only large rows are inserted in a block too. What cannot be logged
-- becomes an F row: the statement of the user continues, and the drain makes the table stale. The first row of a table
-- in a transaction therefore tries, in a block, whether the log can be written to. From then on the log is locked, and
-- no session can drop it, or empty the part that the row went to, before the transaction ends. So the rows that follow
-- go to the same part, and do not look it up. Its number, 0 to 2, is kept in the two lowest bits beside the newest
-- logged command; 3 there is a table without a logged row.
--
-- Row triggers of a statement fire after all of its rows changed. A trigger or function of the application may have
-- changed the table in between, and its later changes were logged first. The log keeps the newest logged command of
-- each table. A row of an older command is late: the current row of its key is logged instead. The same applies to a
-- row version that is gone, or whose command id is ambiguous. A command id is ambiguous if one transaction created a
-- version and ended it.
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
set quote_all_identifiers = off
set row_security = off
set lock_timeout = 0
as $function$
declare
  latest text := 'cdc_toolkit.latest_' || tg_relid;
  before int8;
  command int8;
  written_part smallint;
  late bool;
  present text;
  was text;
  became text;
  failure text;
begin
  begin
    before := coalesce(nullif(current_setting(latest, true), '')::int8, -1);
    written_part := before & 3;
    before := before >> 2;
    if written_part = 3 then
      written_part := cdc.log_part();
      insert into cdc.change_log (part, lsn, relid, op) -- insert nothing, or fail because there is no such part
      select c.part, '0/0', 0, 'F'
      from cdc.change_log_current as c
      where pg_partition_root(to_regclass('cdc.change_log_' || c.part)) is null;
    end if;
    command := case tg_op when 'DELETE' then old.cmax else new.cmin end::text;
    if command > before then
      perform set_config(latest, ((command << 2) | written_part)::text, true);
    end if;
    late := command < before;
    if tg_op = 'DELETE' and not late and age(old.xmin) <= 0 then -- of this transaction, or 2^31 ids old
      late := cdc.of_this_transaction(old.xmin);
    end if;
    if not late and tg_op <> 'DELETE' and new.xmax <> 0 then -- gone, or locked by an upsert or a foreign key
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
      was := case when tg_op <> 'INSERT' then record_out(old) end;
      became := case when tg_op <> 'DELETE' then record_out(new) end;
    end if;
  exception
    when others then failure := sqlstate || ' ' || sqlerrm;
  end;
  if failure is null and not late
    and coalesce(octet_length(was), 0) + coalesce(octet_length(became), 0) < 100000
  then
    insert into cdc.change_log (part, lsn, relid, op, old, new)
    values (written_part, pg_current_wal_insert_lsn(), tg_relid, tg_op::"char", was, became);
    return null;
  end if;
  begin
    if late then
      perform cdc.log_order(tg_relid);
    end if;
    if failure is not null then
      perform cdc.log_failed(tg_relid, failure);
    elsif present is null then
      insert into cdc.change_log (part, lsn, relid, op, old, new)
      values (cdc.log_part(), pg_current_wal_insert_lsn(), tg_relid, tg_op::"char", was, became);
    else
      if tg_op <> 'INSERT' then
        insert into cdc.change_log (part, lsn, relid, op, old)
        values (cdc.log_part(), pg_current_wal_insert_lsn(), tg_relid, 'D', record_out(old)::text);
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

-- Restore the settings that log_row and log_rows set for themselves. Code of a table's owner may leave settings behind:
-- a plain SET outlives the SET clauses of the surrounding functions. Under another search_path the names that follow
-- could resolve to objects of the owner. This function is therefore called directly after each reading. No name is
-- looked up in a search_path here, or between the reading and this call.
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
    pg_catalog.set_config('quote_all_identifiers', 'off', true),
    pg_catalog.set_config('row_security', 'off', true),
    pg_catalog.set_config('lock_timeout', '0', true);
end
$function$;

-- Read rows of a user's table: those that `query` returns for `touched` rows ($1) and a version ($2). Only the owner of
-- the table may run this function. Code of the owner that the server runs while it plans the query (functions in
-- expressions of indexes and statistics) then has the rights of the owner and no others. Each owner has a copy of this
-- function, which belongs to the owner and runs with the owner's rights (cdc.own_reader). The owner can alter that
-- copy, but not its body. Nothing before the refusal therefore depends on a setting, and no argument is ever null. A
-- snapshot of a long transaction may show a former owner. A change of owner, however, updates the catalog rows of the
-- table and of its indexes, so then none of them is unchanged.
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
  ) or pg_catalog.current_setting('row_security') operator(pg_catalog.<>) 'off' then -- a policy is then an error
    raise exception 'table % has changed its owner, or its owner the function that reads it', relid;
  end if;
  return query execute query using touched, version;
end
$function$;

-- Return the function that reads a table: cdc.present, or the copy that belongs to the owner of the table.
create or replace function cdc.reader(relid oid)
returns text
language sql
stable
begin atomic
select case when pg_get_userbyid(c.relowner) = current_user then 'cdc.present' else 'cdc.present_' || c.relowner end
from pg_class as c
where c.oid = reader.relid;
end;

-- Create or repair the copy of cdc.present that belongs to the owner of a table, and let the owner of the functions that
-- log run it. That role must also be able to name the type of the table. If the role may not give a function to
-- another role, there is no copy: rows that are logged out of order then make the table stale.
create or replace function cdc.own_reader(relid oid)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  owner oid := (select c.relowner from pg_class as c where c.oid = relid);
  place oid := (select c.relnamespace from pg_class as c where c.oid = relid);
  logs oid := (select p.proowner from pg_proc as p where p.oid = 'cdc.log_row()'::regprocedure);
  name text := 'present_' || owner;
  body text := (select p.prosrc from pg_proc as p where p.oid = 'cdc.present(oid, text, anyarray, tid)'::regprocedure);
begin
  if not has_schema_privilege(logs, place, 'usage') then
    execute format('grant usage on schema %s to %I', place::regnamespace, pg_get_userbyid(logs));
  end if;
  if owner = logs or exists (
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
      and has_function_privilege(logs, p.oid, 'execute')
      and not exists (select from aclexplode(coalesce(p.proacl, acldefault('f', owner))) as a where a.grantee = 0)
  ) then
    return;
  end if;
  execute format(
    'create or replace function cdc.%1$I(relid oid, query text, touched anyarray, version tid) returns setof anyelement'
    ' language plpgsql security definer as %2$L;'
    ' revoke all on function cdc.%1$I(oid, text, anyarray, tid) from public;'
    ' alter function cdc.%1$I(oid, text, anyarray, tid) owner to %3$I;'
    ' grant execute on function cdc.%1$I(oid, text, anyarray, tid) to %4$I',
    name, body, pg_get_userbyid(owner), pg_get_userbyid(logs)
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

-- Log all rows of a statement: the old images and the new ones. One client command can run several statements (MERGE, a
-- WITH that writes, cascades of foreign keys, triggers and functions of the application), and their triggers fire in
-- another order than their changes. After the first of them has logged the table, the others log the current row of
-- each affected key, instead of the new images. The result is right in any order, and the last statement leaves the
-- current rows. A key that only the first statement has changed is as that statement logged it. Cascades are an
-- exception: they may have changed a row twice, and the trigger sees the changes of all of them as those of one
-- statement. Rows without a key are counted, so order does not matter.
--
-- The server follows a foreign key as soon as it exists, but a transaction that keeps its snapshot may be older than
-- the key. There the rows themselves show a cascade: a version between two changes is among both the old images and the
-- new ones.
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
set quote_all_identifiers = off
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
      select current_part, pg_current_wal_insert_lsn(), tg_relid, 'D', record_out(r.*)::text
      from old_rows as r;
    end if;
    if not found then
      return null;
    end if;
    if tg_op = 'UPDATE' and not cascaded
      and current_setting('transaction_isolation') in ('repeatable read', 'serializable')
    then
      cascaded := exists (select from old_rows as o join new_rows as n on record_out(n.*)::text = record_out(o.*)::text);
    end if;
    if cascaded or current_setting(latest, true) = message then
      perform cdc.log_order(tg_relid);
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
      select current_part, pg_current_wal_insert_lsn(), tg_relid, 'I', record_out(r.*)::text
      from new_rows as r;
    end if;
  exception
    when others then
      perform cdc.log_failed(tg_relid, sqlstate || ' ' || sqlerrm);
  end;
  return null;
end
$function$;

-- Log by which columns rows are identified: changes that were logged in another order follow. Without a key, the order
-- of their images does not matter. With one, the current rows are logged. So the lake must read them by the same columns.
create or replace function cdc.log_order(relid oid)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
begin
  insert into cdc.change_log (part, lsn, relid, op, new)
  select cdc.log_part(), pg_current_wal_insert_lsn(), log_order.relid, 'O', coalesce(
    (
      select array_to_string((i.indkey::int2[])[:i.indnkeyatts - 1], ' ')
      from pg_index as i
      where i.indexrelid = cdc.key_index(log_order.relid)
    ),
    ''
  );
end
$function$;

-- Build the statement that logs, into part $1, the current rows of the keys of `touched` rows; null for a table without
-- a key. Keys are equal as their index defines it: the operator may be in a schema that no search_path here names.
-- Names are the current ones. The snapshot of the transaction may show former names, which another table or column may
-- have now.
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
      ' select $1, pg_current_wal_insert_lsn(), %1$s, ''I'', record_out(r.*)::text'
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

-- Log that a table was truncated. The triggers of a command fire after it has truncated all of its tables. A trigger of
-- the application on one of them may have written to another before that one's own trigger fires. Such rows are logged
-- again after the truncation. All of them are of this transaction, since the table is locked.
create or replace function cdc.log_truncate()
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
set quote_all_identifiers = off
set row_security = off
set lock_timeout = 0
as $function$
begin
  begin
    insert into cdc.change_log (part, lsn, relid, op)
    values (cdc.log_part(), pg_current_wal_insert_lsn(), tg_relid, 'T');
    if pg_relation_size(tg_relid) > 0 then
      execute format(
        'insert into cdc.change_log (part, lsn, relid, op, new)'
        ' select $1, pg_current_wal_insert_lsn(), %1$s, ''I'', record_out(r.*)::text'
        ' from %2$s(%1$s, %3$L, ''{}''::%4$s[], ''(0,0)'') as r',
        tg_relid, cdc.reader(tg_relid), format('select t.* from only %s as t', tg_relid::regclass), tg_relid::regclass
      )
      using cdc.log_part();
      perform cdc.pin();
    end if;
  exception
    when others then
      perform cdc.log_failed(tg_relid, sqlstate || ' ' || sqlerrm);
  end;
  return null;
end
$function$;

-- Return the part that is written to; 0 if the table that says so is empty.
create or replace function cdc.log_part()
returns smallint
language sql
stable
begin atomic
select coalesce((select min(c.part) from cdc.change_log_current as c), 0::smallint);
end;

-- Log a failure with the least possible work. If that fails too, the function only raises a warning, and parity finds
-- the difference.
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
    begin -- it changes the state of capture, so the next drain makes every table stale
      insert into cdc.settings (name, value)
      values ('lost ' || pg_current_xact_id(), convert_to(format('change of table %s', relid), 'UTF8'))
      on conflict do nothing;
    exception
      when others then null;
    end;
end
$function$;

-- Record that rows of the log are lost, or may be, which wait for a tick. (A slot has sent its rows already.) The
-- record is the one of a change that could not be logged, for each table with triggers of the log.
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

-- Record a loss when a session removes rows of the log, perhaps because of its size.
create or replace function cdc.log_emptied()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
  if current_setting('cdc_toolkit.purging', true) is distinct from 'on' then
    perform cdc.log_doubted('rows of the change log were removed by hand');
  end if;
  return null;
end
$function$;

-- Leave out a row that a subscription brings: the log of another server, with relids and transaction ids of that one. The
-- triggers here log what the subscription changes.
create or replace function cdc.log_replicated()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
begin
  return null;
end
$function$;

-- Enabled for replicas only, so that it costs the other sessions nothing. Rows of this server are inserted by another
-- trigger, all but M and F rows, which have the id of their transaction. By chance another server's may have that id: then
-- the signature of an M row refuses it, and an F row makes a table stale.
do $install$
declare
  part record;
begin
  for part in
    select l.relid::regclass as name
    from cdc.log_parts as l
    where l.relkind = 'r'
      and not exists (
        select from pg_trigger as t where t.tgrelid = l.relid and t.tgname = 'own_rows' and t.tgenabled = 'R'
      )
  loop -- waits for sessions that write to the log
    execute format(
      'create or replace trigger own_rows before insert on %s for each row'
      || ' when (pg_trigger_depth() = 0 and (new.op not in (''F'', ''M'') or new.xid <> pg_current_xact_id()))'
      || ' execute function cdc.log_replicated()', part.name
    );
    execute format('alter table %s enable replica trigger own_rows', part.name);
  end loop;
end
$install$;

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
  loop -- waits for sessions that write to the log
    execute format(
      'create or replace trigger kept after update or delete or truncate on %s'
      || ' for each statement execute function cdc.log_emptied()', part.name
    );
    execute format('alter table %s enable always trigger kept', part.name);
  end loop;
  if found then
    perform cdc.log_doubted('no trigger recorded whether rows of the change log were removed');
  end if;
end
$install$;

-- List the differences between the triggers of a table and the configured ones: triggers to create or enable (`keep`),
-- and other triggers that log, which must be dropped.
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
  select t.tgname, t.tgenabled, case when t.tgqual is null and cardinality(t.tgattr::int2[]) = 0 then t.tgtype end as kind
  from pg_trigger as t
  join pg_proc as p on p.oid = t.tgfoid and p.proname in ('log_row', 'log_rows', 'log_truncate')
  join pg_namespace as n on n.oid = p.pronamespace and n.nspname = 'cdc'
  where t.tgrelid = log_lacks.relid
) as t on t.tgname = w.name and t.kind = w.kind
where case when coalesce(w.keep, false) then t.tgenabled is distinct from 'A' else t.tgenabled is not null end
order by 4 -- first drop whatever else would log
$function$;

-- Create or repair the triggers of a table, and return what was done. The names of the triggers sort before all others,
-- those of foreign keys included: when a trigger changes the same row again, that change must be logged after the
-- change that fired it. A partitioned table has no row triggers: they are on each partition, and stay there when the
-- partition is attached or detached. The TRUNCATE trigger of a partitioned table shows that the table is logged
-- (cdc.guard_new). A change of the triggers of a logged table misses no row, since DROP TRIGGER locks the table until
-- the end of the transaction. So one event shows the table, with the triggers that it has then.
create or replace function cdc.log_table(relid oid, by_statement bool)
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  target text;
  wanted record;
  change text;
  command text;
  done text[] := '{}';
  is_logged boolean := exists (select from cdc.logged_tables as l where l.relid = log_table.relid);
begin
  select format('%I.%I', n.nspname, c.relname) into target
  from pg_class as c
  join pg_namespace as n on n.oid = c.relnamespace
  where c.oid = relid;
  for wanted in select * from cdc.log_lacks(relid, by_statement) loop
    foreach change in array case
      when not wanted.keep then array['dropped']
      when wanted.enabled is null then array['created', 'enabled']
      else array['enabled']
    end
    loop
      command := format(
        case change
          when 'dropped' then 'drop trigger %1$I on %2$s'
          when 'created' then 'create trigger %1$I ' || format(wanted.clause, '%2$s')
          else 'alter table %2$s enable always trigger %1$I'
        end,
        wanted.name, target
      );
      if is_logged then
        perform cdc.run_uncaptured(command);
      else
        execute command;
      end if;
      done := done || format('%s %s', change, wanted.name);
    end loop;
  end loop;
  perform cdc.own_reader(relid);
  if is_logged and done <> '{}' and exists (select from pg_event_trigger as t where t.evtname like '\_cdc\_0\_%') then
    perform cdc.emit('ddl_command_end', jsonb_build_object( -- the log gets to know the other triggers
      'tag', 'ALTER TABLE', 'nested', true, 'tables', jsonb_build_array(relid::int8)
    ));
  end if;
  return done;
end
$function$;

-- Drop the copies of cdc.present whose roles no longer own a logged table.
do $install$
declare
  copy record;
begin
  for copy in
    select p.oid::regprocedure as name
    from pg_proc as p
    where p.pronamespace = 'cdc'::regnamespace
      and p.proname ~ '^present_\d+$'
      and not exists (
        select
        from pg_trigger as t
        join pg_class as c on c.oid = t.tgrelid
        where t.tgname like '!cdc\_%' and c.relowner = p.proowner and p.proname = 'present_' || c.relowner
      )
  loop
    execute format('drop function %s', copy.name);
  end loop;
end
$install$;

-- Drop the triggers of a table.
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

-- Rotate the log. Empty the parts that are no longer written to and whose rows are all visible in `drained`, a snapshot
-- whose tick is committed in the lake. Then switch to an empty part; the next call empties the part that is left now.
-- The part that sessions write to is therefore never locked, however long it takes to read one. A part with rows of a
-- transaction that is still open is left alone: the lock is requested without waiting. A session whose snapshot is
-- older than the last rotation may still write to that part, and waits for a moment. The role that drains may run it. All three parts exist and are
-- attached: the caller has checked cdc.log_is_read. Returns the parts that were emptied.
create or replace function cdc.purge_log(drained pg_snapshot)
returns smallint[]
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set row_security = off
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
      ) using drained into rows_left; -- while it is locked, no other session can have written a row
      if not rows_left then
        execute format('truncate table cdc.change_log_%s', number);
        purged := purged || number;
        empty_part := number;
      end if;
    exception
      when lock_not_available then null; -- another session reads or writes it: try next time
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
revoke all on function cdc.log_order(oid) from public;
revoke all on function cdc.log_rows() from public;
revoke all on function cdc.log_truncate() from public;
revoke all on function cdc.log_part() from public;
revoke all on function cdc.log_failed(oid, text) from public;
revoke all on function cdc.log_emptied() from public;
revoke all on function cdc.log_replicated() from public;
revoke all on function cdc.log_lacks(oid, bool) from public;
revoke all on function cdc.log_table(oid, bool) from public;
revoke all on function cdc.unlog_table(oid) from public;
revoke all on function cdc.purge_log(pg_snapshot) from public;
