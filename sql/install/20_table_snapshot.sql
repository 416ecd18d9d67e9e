-- The current description of tables, as the JSON that toolkit/values/table.py reads. The event triggers, `cdc init` and
-- the catalog comparison all use it. It reads catalogs only, and takes no lock on tables that other sessions may hold.
-- Publication membership is computed here because pg_get_publication_tables() opens every published table. The function
-- is in PL/pgSQL and has one plan for all calls, because planning takes several times as long as execution. To set up
-- the plan also takes longer than to execute it, for each node of the plan. What few tables need is therefore in
-- functions of its own, which are called for those tables only.

-- Return the index whose columns identify the rows of a table; null if there is none.
create or replace function cdc.key_index(relid oid)
returns oid
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (
    select i.indexrelid
    from pg_index as i
    join pg_class as c on c.oid = i.indrelid
    where i.indrelid = relid
      and i.indisvalid
      and case c.relreplident
        when 'd' then i.indisprimary and i.indimmediate
        when 'i' then i.indisreplident
        else false
      end
  );
end
$function$;

-- Return the types that print the names of the objects they refer to. The text of a stored value changes when such a
-- name changes, and no event reports that.
create or replace function cdc.naming_types()
returns oid[]
language sql
immutable
set search_path = pg_catalog, pg_temp
begin atomic
select '{
  regclass,regclass[],regcollation,regcollation[],regconfig,regconfig[],regdictionary,regdictionary[],
  regnamespace,regnamespace[],regoper,regoper[],regoperator,regoperator[],regproc,regproc[],
  regprocedure,regprocedure[],regrole,regrole[],regtype,regtype[],aclitem,aclitem[]
}'::regtype[]::oid[];
end;

-- Return the partitions below a table, at any depth.
create or replace function cdc.partitions_below(root oid)
returns oid[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (
    with recursive below (relid) as (
      select h.inhrelid
      from pg_inherits as h
      where h.inhparent = root and not h.inhdetachpending
      union
      select h.inhrelid
      from below as b
      join pg_inherits as h on h.inhparent = b.relid and not h.inhdetachpending
    )

    select array_agg(b.relid order by b.relid)
    from below as b
  );
end
$function$;

-- Return the partitions of a root that sends their rows, if their changes are not in the WAL, or if their old images do
-- not contain the key of the root. Keys are compared by name, because numbers differ.
create or replace function cdc.strays(root oid, partitions oid[])
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (
    with keys as materialized (
      select t.relid, array_agg(a.attname::text order by a.attname) as names
      from unnest(root || partitions) as t (relid)
      join pg_index as i on i.indexrelid = cdc.key_index(t.relid)
      cross join lateral unnest(i.indkey::int2[]) with ordinality as k (attnum, place)
      join pg_attribute as a on a.attrelid = t.relid and a.attnum = k.attnum
      where k.place <= i.indnkeyatts
      group by t.relid
    )

    select jsonb_agg(
      jsonb_build_object(
        'relid', c.oid::int8,
        'name', format('%I.%I', n.nspname, c.relname),
        'kind', c.relkind::text,
        'persistence', c.relpersistence::text,
        'key', k.names
      )
      order by c.oid
    )
    from pg_class as c
    join pg_namespace as n on n.oid = c.relnamespace
    left join keys as k on k.relid = c.oid
    left join keys as o on o.relid = root
    where c.oid = any (partitions)
      and c.relkind <> 'p'
      -- A partition that is identified by its whole row has every old value. One without identity has no UPDATE or DELETE.
      and (c.relkind <> 'r' or c.relpersistence <> 'p' or not coalesce(k.names @> o.names, k.names is null))
  );
end
$function$;

-- The triggers that capture TRUNCATE of a partition, or of a root that publishes its rows (32_partitions). `stamp`
-- changes when one is switched off or on.
create or replace view cdc.guards as
select t.tgrelid as relid, t.oid, t.xmin as stamp
from pg_trigger as t
join pg_proc as p on p.oid = t.tgfoid and p.proname = 'capture_truncate'
join pg_namespace as n on n.oid = p.pronamespace and n.nspname = 'cdc'
where t.tgenabled = 'A'
  and t.tgtype = 34 -- before TRUNCATE
  and t.tgqual is null;
revoke all on cdc.guards from public;

-- Return the trigger of each partition that captures its TRUNCATE.
create or replace function cdc.guards_of(partitions oid[])
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (
    select coalesce(
      jsonb_agg(jsonb_build_array(g.relid::int8, g.oid::int8, g.stamp::text::int8) order by g.relid, g.oid), '[]'
    )
    from cdc.guards as g
    where g.relid = any (partitions)
  );
end
$function$;

-- Return the place of each of these tables in its parent. A partition that was detached and attached again has another
-- row version.
create or replace function cdc.places(relids oid[])
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (
    select coalesce(
      jsonb_agg(
        jsonb_build_array(h.inhrelid::int8, h.inhparent::int8, h.xmin::text::int8) order by h.inhrelid, h.inhparent
      ),
      '[]'
    )
    from pg_inherits as h
    where h.inhrelid = any (relids) and not h.inhdetachpending
  );
end
$function$;

-- Return what the publications that send a table send of it together, as pgoutput merges them.
create or replace function cdc.sent_by(relid oid, publications jsonb)
returns jsonb
language plpgsql
stable
strict
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
begin
  if jsonb_array_length(publications) = 1 and publications -> 0 ->> 'row_filter' is null then
    return publications -> 0;
  end if;
  return (
    with sending as materialized (
      select p.name collate "C" as name, p.publishes, p.attrs, p.stored_generated, p.row_filter collate "C" as row_filter
      from jsonb_to_recordset(publications) as p (
        name text, publishes text[], attrs int2[], stored_generated bool, row_filter text
      )
    ),

    filters as ( -- of one kind of change: a row passes if any term lets it through; no term means no filter
      select
        case when bool_or(s.row_filter is null) then '{}' else array_agg(distinct s.row_filter order by s.row_filter) end
          as terms
      from sending as s
      cross join lateral unnest(s.publishes) as a (action)
      where a.action <> 'truncate'
      group by a.action
    ),

    filtered as (
      select
        count(distinct f.terms) > 1 as differ,
        case
          when cardinality(max(f.terms)) > 1 then '((' || array_to_string(max(f.terms), ') OR (') || '))'
          else (max(f.terms))[1]
        end as row_filter
      from filters as f
    )

    select jsonb_build_object(
      'publishes', array_remove(array_agg(distinct a.action), null),
      'attrs', max(s.attrs),
      'stored_generated', bool_or(s.stored_generated),
      'row_filter', (select f.row_filter from filtered as f),
      'conflict', case
        when count(distinct coalesce(s.attrs, '{}')) > 1 then 'column lists'
        when count(distinct s.stored_generated) filter (where s.attrs is null) > 1
          and exists (
            select from pg_attribute as g where g.attrelid = sent_by.relid and g.attnum > 0 and g.attgenerated <> ''
          )
          then 'publish_generated_columns'
        when (select f.differ from filtered as f) then 'row filters of its inserts, updates and deletes'
      end
      || ' differ between publications ' || string_agg(distinct quote_ident(s.name), ', ')
    )
    from sending as s
    left join lateral unnest(s.publishes) as a (action) on true
  );
end
$function$;

-- Return what the description of a column says of its type, if it is one of the user, prints names, or is not a base
-- type.
create or replace function cdc.type_details(typ oid)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off -- by index, however large the catalogs are
as $function$
#variable_conflict use_column
begin
  return (
    with recursive domains (base, typmod) as (
      select t.typbasetype, t.typtypmod
      from pg_type as t
      where t.oid = type_details.typ
        and t.typtype = 'd'
      union all
      select t.typbasetype, case when d.typmod = -1 then t.typtypmod else d.typmod end
      from domains as d
      join pg_type as t on t.oid = d.base and t.typtype = 'd'
    ),

    base as materialized (
      select d.base, d.typmod
      from domains as d
      join pg_type as t on t.oid = d.base and t.typtype <> 'd'
    ),

    inside (typ) as ( -- the types in the text of a column: types of the user, and types that print names
      select type_details.typ
      where type_details.typ > 16383 or type_details.typ = any (cdc.naming_types())
      union
      select n.typ
      from inside as i
      join pg_type as t on t.oid = i.typ
      cross join lateral (
        select t.typelem as typ
        where t.typlen = -1
        union all
        select t.typbasetype
        union all
        select r.rngsubtype
        from pg_range as r
        where r.rngtypid = t.oid
        union all
        select r.rngtypid
        from pg_range as r
        where r.rngmultitypid = t.oid
        union all
        select f.atttypid
        from pg_attribute as f
        where f.attrelid = t.typrelid and t.typtype = 'c' and f.attnum > 0 and not f.attisdropped
      ) as n
      where n.typ > 16383 or n.typ = any (cdc.naming_types())
    )

    select jsonb_build_object(
      'base_type', format_type(b.base, b.typmod),
      'enum_labels', (
        select jsonb_agg(jsonb_build_object('oid', e.oid::int8, 'label', e.enumlabel) order by e.enumsortorder)
        from pg_enum as e
        where e.enumtypid = coalesce(b.base, t.oid)
      ),
      'attributes', (
        select jsonb_agg(
          jsonb_build_object('name', f.attname, 'type', format_type(f.atttypid, f.atttypmod)) order by f.attnum
        )
        from pg_attribute as f
        where f.attrelid = t.typrelid and t.typtype = 'c' and f.attnum > 0 and not f.attisdropped
      ),
      'inner_labels', ( -- of enums inside arrays, composites and ranges; the column's own labels are above
        select jsonb_agg(jsonb_build_object('oid', e.oid::int8, 'label', e.enumlabel) order by e.oid)
        from inside as i
        join pg_enum as e on e.enumtypid = i.typ
        where i.typ <> coalesce(b.base, t.oid)
      ),
      -- Shapes of composites, by attribute number: their text contains no names. A dropped attribute has no type. It
      -- shows that the type had one more for a while, which no other trace is left of.
      'inner_rows', (
        select jsonb_agg(jsonb_build_array(i.typ::int8, f.attnum, f.atttypid::int8, f.atttypmod) order by i.typ, f.attnum)
        from inside as i
        join pg_type as c on c.oid = i.typ and c.typtype = 'c'
        join pg_attribute as f on f.attrelid = c.typrelid and f.attnum > 0
      )
    )
    || case
      when exists (select from inside as i where i.typ = any (cdc.naming_types())) then jsonb_build_object('borrowed', true)
      else '{}'
    end
    || case
      when ( -- an array, or a domain over one, whose elements are not separated by commas
        select e.typdelim
        from pg_type as e
        where e.oid = (select y.typelem from pg_type as y where y.oid = coalesce(b.base, t.oid) and y.typlen = -1)
      ) <> ',' then '{"type_kind": "a"}'::jsonb
      else '{}'
    end
    from pg_type as t
    left join base as b on true
    where t.oid = type_details.typ
  );
end
$function$;

create or replace function cdc.table_snapshots(relids oid[])
returns table (relid oid, snapshot jsonb)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off -- by index, however large the catalogs are
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off -- its cost estimates would cause every call to be compiled, for a second
set datestyle = 'ISO'
set intervalstyle = 'postgres'
set timezone = 'UTC'
set bytea_output = 'hex'
set extra_float_digits = 3
set lc_monetary = 'C'
set quote_all_identifiers = off
as $function$
#variable_conflict use_column
declare
  publications cdc.publications[] := array(select p from cdc.publications as p);
  -- Drained by ticks: the lake does not read what a publication sends.
  by_ticks bool := exists (
    select from cdc.known_settings as s where s.name = 'slot' and s.value = convert_to('dropped', 'UTF8')
  );
  logged oid[] := '{}'; -- captured by triggers
  log jsonb;
  log_entries jsonb;
begin
if exists (select from pg_class as c where c.oid = any (relids) and c.relkind = 'r' and c.relhastriggers) then
  logged := array(select l.relid from cdc.logged_tables as l where l.relid = any (relids));
end if;
if logged <> '{}' then
  log := jsonb_build_object(
    'log', (select jsonb_agg(g.relid::int8 order by g.relid) from cdc.log_parts as g), -- if re-created, it lost rows
    'attached', ( -- so has a part that was detached for a while: its row version shows that
      select jsonb_agg(g.xmin::text::int8 order by g.inhrelid)
      from pg_inherits as g
      where g.inhparent = to_regclass('cdc.change_log')
    ),
    'toasted', ( -- so has a part that was unlogged for a while: it has another TOAST table, which TRUNCATE leaves
      select jsonb_agg(c.reltoastrelid::int8 order by c.oid)
      from cdc.log_parts as g
      join pg_class as c on c.oid = g.relid
    ),
    'moved', ( -- and a part that was in another schema for a while: SET SCHEMA writes this row
      select jsonb_agg(d.xmin::text::int8 order by d.objid)
      from cdc.log_parts as g
      join pg_depend as d on d.objid = g.relid and d.classid = 'pg_class'::regclass and d.objsubid = 0
      where d.refclassid = 'pg_namespace'::regclass
    )
  )
  || case
    -- Rows that wait for a tick can be removed. If the trigger that records it was off for a while, its row version shows
    -- that.
    when exists (select from cdc.known_settings as d where d.name = 'ddl_to_log')
      then jsonb_build_object(
        'kept', (
          select jsonb_agg(jsonb_build_array(t.oid::int8, t.xmin::text::int8) order by t.oid)
          from cdc.log_parts as g
          join pg_trigger as t on t.tgrelid = g.relid and t.tgname = 'kept'
        )
      )
    else '{}'
  end;
  log_entries := (
    select coalesce(
      jsonb_agg(
        jsonb_build_array(e.publication::int8, e.object::int8, e.entry::int8, e.stamp::text::int8)
        order by e.publication, e.object
      ),
      '[]'
    )
    from (
      select p.oid as publication, 0::oid as object, p.oid as entry, p.stamp
      from unnest(publications) as p
      union all
      select r.prpubid, r.prrelid, r.oid, r.xmin
      from unnest(publications) as p
      cross join cdc.log_parts as g
      join pg_publication_rel as r on r.prpubid = p.oid and r.prrelid = g.relid
      union all
      select g.pnpubid, g.pnnspid, g.oid, g.xmin
      from unnest(publications) as p
      join pg_publication_namespace as g on g.pnpubid = p.oid and g.pnnspid = 'cdc'::regnamespace
    ) as e
  );
end if;
return query
select
  w.oid,
  jsonb_build_object(
    'relid', w.oid::int8,
    'schema', n.nspname,
    'name', w.relname,
    'kind', w.relkind::text,
    'persistence', w.relpersistence::text,
    'replica_identity', w.relreplident::text,
    'key_attnums', coalesce(k.key_attnums, '[]'),
    'primary_key', coalesce(k.primary_key, '[]'),
    'columns', coalesce(a.columns, '[]'),
    'parents', coalesce(
      (
        select jsonb_agg(h.inhparent::int8 order by h.inhseqno)
        from pg_inherits as h
        where h.inhrelid = w.oid and not h.inhdetachpending
      ),
      '[]'
    ),
    'children', coalesce(to_jsonb(b.partitions::int8[]), '[]'), -- rows of children by inheritance are not the parent's
    'published', p.sent is not null and not by_ticks or l.is_logged,
    'publishes', p.sent -> 'publishes',
    'row_filter', p.sent -> 'row_filter',
    'comment', (
      select o.description
      from pg_description as o
      where o.objoid = w.oid and o.classoid = 'pg_class'::regclass and o.objsubid = 0
    ),
    'stamps', coalesce(a.stamps, '[]'),
    'storage', case w.relkind -- of the table or of its partitions: file and TOAST table
      when 'r' then jsonb_build_array(jsonb_build_array(w.oid::int8, w.relfilenode::int8, w.reltoastrelid::int8))
      when 'p' then coalesce(
        (
          select jsonb_agg(jsonb_build_array(f.oid::int8, f.relfilenode::int8, f.reltoastrelid::int8) order by f.oid)
          from pg_class as f
          where f.oid = any (b.partitions) and f.relkind = 'r'
        ),
        '[]'
      )
      else '[]'
    end,
    'entries', case -- why a table is sent: publications and their entries; a re-created entry has not sent all changes
      when not l.is_logged then case when p.sent is null then '[]' else p.entries end
      when p.sent is null then log_entries
      else (select jsonb_agg(distinct e.entry) from jsonb_array_elements(p.entries || log_entries) as e (entry))
    end
  )
  || case
    when not l.is_logged then '{}'
    else log || jsonb_build_object('capture', case when p.sent is not null then 'both' else 'change_log' end)
  end
  || case when p.sent ->> 'conflict' is null then '{}' else jsonb_build_object('conflict', p.sent -> 'conflict') end
  || case when s.list is null then '{}' else jsonb_build_object('strays', s.list) end
  || case when s.guards is null then '{}' else jsonb_build_object('guards', s.guards) end
  || case
    when w.relispartition or w.relkind = 'p' then jsonb_build_object('places', cdc.places(b.lineage || b.partitions))
    else '{}'
  end
  || coalesce(
    (
      select jsonb_build_object( -- the row version of an enum's label shows that it was another one for a while
        'labels', jsonb_agg(jsonb_build_array(e.enumtypid::int8, e.oid::int8, e.xmin::text::int8) order by e.oid)
      )
      from pg_enum as e
      where e.oid in (
        select l.oid::int8::oid
        from jsonb_path_query(a.columns, '$[*].*[*].oid') as l (oid) -- labels of the enum of a column, and of enums inside its type
      )
      having count(*) > 0
    ),
    '{}'
  )
  || case
    when not l.is_logged then '{}'
    else jsonb_build_object( -- the row version of a trigger shows that it was disabled or replaced for a while
      'triggers',
      (
        select jsonb_agg(jsonb_build_array(t.oid::int8, t.xmin::text) order by t.oid)
        from pg_trigger as t
        where t.tgrelid = w.oid and t.tgname like '!cdc\_%'
      )
    )
    || coalesce(
      (
        -- Another constraint of the same columns shows that rows had no key for a while. REINDEX CONCURRENTLY keeps it.
        select jsonb_build_object('key_constraint', jsonb_build_array(o.oid::int8, o.xmin::text::int8))
        from pg_constraint as o
        where o.conrelid = w.oid and o.conindid = b.key_index and o.contype in ('p', 'u')
      ),
      '{}'
    )
  end
from pg_class as w
join pg_namespace as n on n.oid = w.relnamespace
cross join lateral (
  select
    cdc.key_index(w.oid) as key_index,
    case when w.relkind = 'p' then cdc.partitions_below(w.oid) end as partitions,
    case when w.relispartition then array(select r.relid from pg_partition_ancestors(w.oid) as r) else array[w.oid] end
      as lineage -- from the table to its root
  offset 0
) as b
cross join lateral (
  select w.relkind = 'r' and w.relpersistence = 'p' and w.oid = any (logged) as is_logged
  offset 0
) as l

-- The publications that send a table under its own name. If one of them sends a partition as its root, no publication
-- sends it under its own name. A row filter has no effect beside ALL TABLES or the schema of the table.
cross join lateral (
  select
    case
      when not bool_or(m.as_root)
        then cdc.sent_by(
          w.oid,
          jsonb_agg(
            distinct jsonb_build_object(
              'name', m.pubname,
              'publishes', m.publishes,
              'attrs', m.attrs,
              'stored_generated', m.stored_generated,
              'row_filter', m.row_filter
            )
          ) filter (where m.sends)
        )
    end as sent,
    jsonb_agg(
      distinct jsonb_build_array(m.oid::int8, e.object, e.entry::int8, e.stamp::text::int8)
    ) filter (where m.sends and e.entry is not null) as entries
  from (
    select
      p.*,
      w.relkind = 'r' or p.pubviaroot as sends,
      p.pubviaroot and u.place > 1 as as_root,
      o.prattrs::int2[] as attrs,
      case when not p.puballtables and q.oid is null then pg_get_expr(o.prqual, o.prrelid) end as row_filter,
      r.prrelid,
      r.oid as rel_entry,
      r.xmin as rel_stamp,
      g.pnnspid,
      g.oid as schema_entry,
      g.xmin as schema_stamp,
      u.relid as placed,
      (
        select d.xmin
        from pg_depend as d
        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.objsubid = 0
          and d.refclassid = 'pg_namespace'::regclass
      ) as move_stamp -- SET SCHEMA writes this row
    from unnest(publications) as p
    cross join unnest(b.lineage) with ordinality as u (relid, place)
    join pg_class as c on c.oid = u.relid
    left join pg_publication_rel as r on r.prpubid = p.oid and r.prrelid = u.relid
    left join pg_publication_namespace as g on g.pnpubid = p.oid and g.pnnspid = c.relnamespace
    left join pg_publication_rel as o on o.prpubid = p.oid and o.prrelid = w.oid
    left join pg_publication_namespace as q on q.pnpubid = p.oid and q.pnnspid = w.relnamespace
    where p.puballtables or r.oid is not null or g.oid is not null
  ) as m
  cross join lateral (
    values
      (0::int8, m.oid, m.stamp),
      (m.prrelid::int8, m.rel_entry, m.rel_stamp),
      (m.pnnspid::int8, m.schema_entry, m.schema_stamp),
      -- The place of the table in this schema: in another one it has another place.
      (m.pnnspid::int8 << 32 | m.placed::int8, case when m.prrelid is null then m.schema_entry end, m.move_stamp)
  ) as e (object, entry, stamp)
  where w.relkind in ('r', 'p')
    and w.relpersistence = 'p'
    and w.oid > 16383 -- a table of the user; not 16384, which a cached plan would take for the table of that OID
) as p
cross join lateral (
  select
    case when w.relkind = 'p' and p.sent is not null then cdc.strays(w.oid, b.partitions) end as list,
    case when w.relkind = 'p' and p.sent is not null then cdc.guards_of(b.partitions) end as guards
  offset 0
) as s
cross join lateral (
  select
    jsonb_agg(k.attnum order by k.place) filter (where i.indexrelid = b.key_index) as key_attnums,
    jsonb_agg(k.attnum order by k.place) filter (where i.indisprimary) as primary_key
  from pg_index as i
  cross join lateral unnest(i.indkey::int2[]) with ordinality as k (attnum, place)
  where i.indrelid = w.oid and k.place <= i.indnkeyatts
) as k
cross join lateral (
  select
    jsonb_agg(
      jsonb_build_object(
        'attnum', a.attnum,
        'name', a.attname,
        'type_oid', a.atttypid::int8,
        'type', format_type(a.atttypid, a.atttypmod),
        'typmod', a.atttypmod,
        'not_null', a.attnotnull and coalesce(( -- from PostgreSQL 18 on also set by a constraint that is NOT VALID
          select n.convalidated
          from pg_constraint as n
          where n.conrelid = a.attrelid and n.contype = 'n' and n.conkey = array[a.attnum]
        ), true),
        'default', pg_get_expr(d.adbin, d.adrelid),
        'generated', a.attgenerated::text,
        'identity', a.attidentity::text,
        'collation', case
          when a.attcollation <> t.typcollation
            then (
              select format('%I.%I', c.nspname, l.collname)
              from pg_collation as l
              join pg_namespace as c on c.oid = l.collnamespace
              where l.oid = a.attcollation and a.attcollation <> t.typcollation
            )
        end,
        'has_missing', a.atthasmissing,
        'missing', case when a.atthasmissing then array_to_string(a.attmissingval, '') end,
        'type_kind', t.typtype::text,
        'type_category', t.typcategory::text,
        'comment', o.description,
        'published', case
          when jsonb_typeof(p.sent -> 'attrs') = 'array' then p.sent -> 'attrs' @> to_jsonb(a.attnum)
          else
            a.attgenerated = ''
            or (
              a.attgenerated = 's'
              and coalesce( -- a source drained by ticks has no publication
                case
                  when p.sent is not null then (p.sent -> 'stored_generated')::bool
                  else l.is_logged and (select bool_or(q.stored_generated) from unnest(publications) as q)
                end,
                false
              )
            )
        end
      )
      || case
        when t.typtype <> 'b' or t.oid > 16383 or t.oid = any (cdc.naming_types()) then cdc.type_details(t.oid)
        else '{"base_type": null, "enum_labels": null, "attributes": null, "inner_labels": null, "inner_rows": null}'
      end
      order by a.attnum
    ) filter (where not a.attisdropped) as columns,
    -- The writers of the catalog rows of each column, dropped ones too: of the column and of its default.
    jsonb_agg(jsonb_build_array(a.xmin::text::int8, d.xmin::text::int8) order by a.attnum) as stamps
  from pg_attribute as a
  left join pg_type as t on t.oid = a.atttypid
  left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
  left join pg_description as o on o.objoid = a.attrelid and o.classoid = 'pg_class'::regclass and o.objsubid = a.attnum
  where a.attrelid = w.oid and a.attnum > 0
) as a
where w.oid = any (relids)
  and w.relkind in ('r', 'p', 'v', 'm', 'f');
end
$function$;

create or replace function cdc.table_snapshot(relid oid)
returns jsonb
language sql
stable
begin atomic
select s.snapshot from cdc.table_snapshots(array[relid]) as s;
end;

revoke all on function cdc.naming_types() from public;
revoke all on function cdc.key_index(oid) from public;
revoke all on function cdc.partitions_below(oid) from public;
revoke all on function cdc.strays(oid, oid[]) from public;
revoke all on function cdc.guards_of(oid[]) from public;
revoke all on function cdc.places(oid[]) from public;
revoke all on function cdc.sent_by(oid, jsonb) from public;
revoke all on function cdc.type_details(oid) from public;
revoke all on function cdc.table_snapshots(oid[]) from public;
revoke all on function cdc.table_snapshot(oid) from public;
