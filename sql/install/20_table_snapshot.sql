-- The current description of tables, as the JSON that toolkit/values/table.py reads. The event triggers, `cdc init` and
-- the catalog comparison all use it. It reads catalogs only, and takes no lock on tables that other sessions may hold.
-- Publication membership is computed here because pg_get_publication_tables() opens every published table. The function
-- is in PL/pgSQL and has one plan for all calls, because planning takes several times as long as execution.

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

create or replace function cdc.table_snapshots(relids oid[])
returns table (relid oid, snapshot jsonb)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off -- by index, however large the catalogs are
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
begin
return query
with recursive wanted as materialized (
  select c.*
  from pg_class as c
  where c.oid = any (relids)
    and c.relkind in ('r', 'p', 'v', 'm', 'f')
),

publications as materialized (
  select p.* from cdc.publications as p
),

lineage (relid, ancestor, depth) as (
  select w.oid, w.oid, 0
  from wanted as w
  union all
  select l.relid, i.inhparent, l.depth + 1
  from lineage as l
  join pg_class as c on c.oid = l.ancestor and c.relispartition
  join pg_inherits as i on i.inhrelid = l.ancestor and not i.inhdetachpending
),

descendants (root, relid) as (
  select w.oid, h.inhrelid
  from wanted as w
  join pg_inherits as h on h.inhparent = w.oid and not h.inhdetachpending
  where w.relkind = 'p'
  union
  select d.root, h.inhrelid
  from descendants as d
  join pg_inherits as h on h.inhparent = d.relid and not h.inhdetachpending
),

membership as materialized ( -- which publications name the ancestors of a table
  select l.relid, l.depth, p.oid as publication, p.pubviaroot
  from lineage as l
  cross join publications as p
  join pg_class as c on c.oid = l.ancestor
  left join pg_publication_rel as r on r.prpubid = p.oid and r.prrelid = l.ancestor
  left join pg_publication_namespace as n on n.pnpubid = p.oid and n.pnnspid = c.relnamespace
  where p.puballtables or r.oid is not null or n.oid is not null
),

-- The publications that send a table under its own name; pgoutput merges them. If one of them sends a partition as its
-- root, no publication sends it under its own name. A row filter has no effect beside ALL TABLES or the schema of the
-- table.
sending as materialized (
  select
    w.oid as relid,
    p.oid as publication,
    p.pubname,
    p.publishes,
    p.stored_generated,
    r.prattrs::int2[] as attrs,
    case
      when not p.puballtables and n.oid is null then pg_get_expr(r.prqual, r.prrelid) collate "C"
    end as row_filter
  from wanted as w
  cross join publications as p
  left join pg_publication_rel as r on r.prpubid = p.oid and r.prrelid = w.oid
  left join pg_publication_namespace as n on n.pnpubid = p.oid and n.pnnspid = w.relnamespace
  where w.relpersistence = 'p'
    and w.oid > 16383 -- a table of the user; not 16384, which a cached plan would take for the table of that OID
    and (w.relkind = 'r' or (w.relkind = 'p' and p.pubviaroot))
    and exists (select from membership as m where m.relid = w.oid and m.publication = p.oid)
    and not exists (select from membership as m where m.relid = w.oid and m.pubviaroot and m.depth > 0)
),

logged as materialized ( -- captured by triggers
  select w.oid as relid
  from wanted as w
  join cdc.logged_tables as l on l.relid = w.oid
  where w.relkind = 'r' and w.relpersistence = 'p'
),

entries as ( -- why a table is sent: publications and their entries; a re-created entry has not sent all changes
  select
    e.relid,
    jsonb_agg(
      jsonb_build_array(e.publication::int8, e.object::int8, e.entry::int8, e.stamp::text::int8)
      order by e.publication, e.object
    ) as list
  from (
    select s.relid, p.oid as publication, 0::oid as object, p.oid as entry, p.xmin as stamp
    from (
      select s.relid, s.publication from sending as s
      union
      select l.relid, p.oid from logged as l cross join publications as p
    ) as s
    join pg_publication as p on p.oid = s.publication
    union
    select s.relid, r.prpubid, r.prrelid, r.oid, r.xmin
    from (
      select s.relid, s.publication, l.ancestor from sending as s join lineage as l on l.relid = s.relid
      union
      select l.relid, p.oid, g.relid from logged as l cross join publications as p cross join cdc.log_parts as g
    ) as s
    join pg_publication_rel as r on r.prpubid = s.publication and r.prrelid = s.ancestor
    union
    select s.relid, n.pnpubid, n.pnnspid, n.oid, n.xmin
    from sending as s
    join lineage as l on l.relid = s.relid
    join pg_class as c on c.oid = l.ancestor
    join pg_publication_namespace as n on n.pnpubid = s.publication and n.pnnspid = c.relnamespace
  ) as e
  group by e.relid
),

filters as ( -- of one kind of change: a row passes if any term lets it through; no term means no filter
  select
    s.relid,
    case when bool_or(s.row_filter is null) then '{}' else array_agg(distinct s.row_filter order by s.row_filter) end as terms
  from sending as s
  cross join lateral unnest(s.publishes) as a (action)
  where a.action <> 'truncate'
  group by s.relid, a.action
),

filtered as (
  select
    f.relid,
    count(distinct f.terms) > 1 as differ,
    case
      when cardinality(max(f.terms)) > 1 then '((' || array_to_string(max(f.terms), ') OR (') || '))'
      else (max(f.terms))[1]
    end as row_filter
  from filters as f
  group by f.relid
),

in_publication as materialized (
  select
    s.relid,
    array_agg(distinct a.action) as publishes,
    max(s.attrs) as attrs,
    bool_or(s.stored_generated) as stored_generated,
    f.row_filter,
    case
      when count(distinct coalesce(s.attrs, '{}')) > 1 then 'column lists'
      when count(distinct s.stored_generated) filter (where s.attrs is null) > 1
        and exists (
          select from pg_attribute as g where g.attrelid = s.relid and g.attnum > 0 and g.attgenerated <> ''
        )
        then 'publish_generated_columns'
      when f.differ then 'row filters of its inserts, updates and deletes'
    end
    || ' differ between publications ' || string_agg(distinct quote_ident(s.pubname), ', ') as conflict
  from sending as s
  left join lateral unnest(s.publishes) as a (action) on true
  left join filtered as f on f.relid = s.relid
  group by s.relid, f.row_filter, f.differ
),

roots as materialized ( -- those that send the rows of their partitions
  select w.oid as relid
  from wanted as w
  join in_publication as p on p.relid = w.oid
  where w.relkind = 'p'
),

keys as ( -- of the roots and their partitions, by name, because numbers differ
  select t.relid, array_agg(a.attname::text order by a.attname) as names
  from (
    select r.relid from roots as r
    union
    select d.relid from roots as r join descendants as d on d.root = r.relid
  ) as t
  join pg_index as i on i.indexrelid = cdc.key_index(t.relid)
  cross join lateral unnest(i.indkey::int2[]) with ordinality as k (attnum, place)
  join pg_attribute as a on a.attrelid = t.relid and a.attnum = k.attnum
  where k.place <= i.indnkeyatts
  group by t.relid
),

strays as ( -- partitions whose changes are not in the WAL, or whose old images do not contain the key of their root
  select
    r.relid as root,
    jsonb_agg(
      jsonb_build_object(
        'relid', c.oid::int8,
        'name', format('%I.%I', n.nspname, c.relname),
        'kind', c.relkind::text,
        'persistence', c.relpersistence::text,
        'key', k.names
      )
      order by c.oid
    ) as list
  from roots as r
  join descendants as d on d.root = r.relid
  join pg_class as c on c.oid = d.relid and c.relkind <> 'p'
  join pg_namespace as n on n.oid = c.relnamespace
  left join keys as k on k.relid = c.oid
  left join keys as o on o.relid = r.relid
  -- A partition that is identified by its whole row has every old value. One without identity has no UPDATE or DELETE.
  where c.relkind <> 'r' or c.relpersistence <> 'p' or not coalesce(k.names @> o.names, k.names is null)
  group by r.relid
),

published as materialized (
  select p.relid, p.attrs, p.stored_generated
  from in_publication as p
  union all
  select l.relid, null, (select bool_or(q.stored_generated) from publications as q)
  from logged as l
  where l.relid not in (select p.relid from in_publication as p)
),

attributes as materialized (
  select a.*
  from pg_attribute as a
  join wanted as w on w.oid = a.attrelid
  where a.attnum > 0
    and not a.attisdropped
),

domains (domain, base, typmod) as (
  select t.oid, t.typbasetype, t.typtypmod
  from pg_type as t
  where t.oid in (select a.atttypid from attributes as a)
    and t.typtype = 'd'
  union all
  select d.domain, t.typbasetype, case when d.typmod = -1 then t.typtypmod else d.typmod end
  from domains as d
  join pg_type as t on t.oid = d.base and t.typtype = 'd'
),

bases as materialized (
  select d.domain, d.base, d.typmod
  from domains as d
  join pg_type as t on t.oid = d.base and t.typtype <> 'd'
),

inside (root, typ) as ( -- the types in the text of a column: types of the user, and types that print names
  select distinct a.atttypid, a.atttypid
  from attributes as a
  where a.atttypid > 16383 or a.atttypid = any (cdc.naming_types())
  union
  select i.root, n.typ
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
),

columns as (
  select
    a.attrelid,
    jsonb_agg(
      jsonb_build_object(
        'attnum', a.attnum,
        'name', a.attname,
        'type_oid', a.atttypid::int8,
        'type', format_type(a.atttypid, a.atttypmod),
        'typmod', a.atttypmod,
        'not_null', a.attnotnull,
        'default', pg_get_expr(d.adbin, d.adrelid),
        'generated', a.attgenerated::text,
        'identity', a.attidentity::text,
        'collation', (
          select format('%I.%I', n.nspname, l.collname)
          from pg_collation as l
          join pg_namespace as n on n.oid = l.collnamespace
          where l.oid = a.attcollation and a.attcollation <> t.typcollation
        ),
        'has_missing', a.atthasmissing,
        'missing', case when a.atthasmissing then array_to_string(a.attmissingval, '') end,
        'type_kind', t.typtype::text,
        'type_category', t.typcategory::text,
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
          where i.root = t.oid and i.typ <> coalesce(b.base, t.oid)
        ),
        'inner_rows', ( -- shapes of composites, by attribute number: their text contains no names
          select jsonb_agg(jsonb_build_array(i.typ::int8, f.attnum, f.atttypid::int8, f.atttypmod) order by i.typ, f.attnum)
          from inside as i
          join pg_type as c on c.oid = i.typ and c.typtype = 'c'
          join pg_attribute as f on f.attrelid = c.typrelid and f.attnum > 0 and not f.attisdropped
          where i.root = t.oid
        ),
        'comment', o.description,
        'published', case
          when p.attrs is not null then a.attnum = any (p.attrs)
          else
            a.attgenerated = ''
            or (a.attgenerated = 's' and coalesce(p.stored_generated, false))
        end
      )
      || case
        when exists (select from inside as i where i.root = t.oid and i.typ = any (cdc.naming_types())) then jsonb_build_object('borrowed', true)
        else '{}'
      end
      order by a.attnum
    ) as list
  from attributes as a
  join pg_type as t on t.oid = a.atttypid
  left join bases as b on b.domain = a.atttypid
  left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
  left join pg_description as o on o.objoid = a.attrelid and o.classoid = 'pg_class'::regclass and o.objsubid = a.attnum
  left join published as p on p.relid = a.attrelid
  group by a.attrelid
)

select
  w.oid,
  jsonb_build_object(
    'relid', w.oid::int8,
    'schema', n.nspname,
    'name', w.relname,
    'kind', w.relkind::text,
    'persistence', w.relpersistence::text,
    'replica_identity', w.relreplident::text,
    'key_attnums', coalesce(
      (
        select jsonb_agg(k.attnum order by k.place)
        from pg_index as i
        cross join lateral unnest(i.indkey::int2[]) with ordinality as k (attnum, place)
        where i.indexrelid = cdc.key_index(w.oid) and k.place <= i.indnkeyatts
      ),
      '[]'
    ),
    'primary_key', coalesce(
      (
        select jsonb_agg(k.attnum order by k.place)
        from pg_index as i
        cross join lateral unnest(i.indkey::int2[]) with ordinality as k (attnum, place)
        where i.indrelid = w.oid and i.indisprimary and k.place <= i.indnkeyatts
      ),
      '[]'
    ),
    'columns', coalesce(c.list, '[]'),
    'parents', coalesce(
      (
        select jsonb_agg(h.inhparent::int8 order by h.inhseqno)
        from pg_inherits as h
        where h.inhrelid = w.oid and not h.inhdetachpending
      ),
      '[]'
    ),
    'children', coalesce( -- partitions at any depth; rows of children by inheritance are not the parent's
      (
        select jsonb_agg(d.relid::int8 order by d.relid)
        from descendants as d
        where d.root = w.oid
      ),
      '[]'
    ),
    'published', p.relid is not null,
    'publishes', to_jsonb(array_remove(i.publishes, null)),
    'row_filter', i.row_filter,
    'comment', (
      select o.description
      from pg_description as o
      where o.objoid = w.oid and o.classoid = 'pg_class'::regclass and o.objsubid = 0
    ),
    'stamps', ( -- writers of the catalog rows of each column, dropped ones too: of the column and of its default
      select coalesce(jsonb_agg(jsonb_build_array(a.xmin::text::int8, d.xmin::text::int8) order by a.attnum), '[]')
      from pg_attribute as a
      left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
      where a.attrelid = w.oid and a.attnum > 0
    ),
    'storage', ( -- of the table or of its partitions: file and TOAST table
      select coalesce(jsonb_agg(jsonb_build_array(f.oid::int8, f.relfilenode::int8, f.reltoastrelid::int8) order by f.oid), '[]')
      from pg_class as f
      where f.relkind = 'r'
        and f.oid in (select w.oid union all select d.relid from descendants as d where d.root = w.oid)
    )
  )
  || jsonb_build_object('entries', coalesce(e.list, '[]'))
  || case
    when l.relid is null then '{}'
    else jsonb_build_object(
      'capture', case when i.relid is not null then 'both' else 'change_log' end,
      'log', (select jsonb_agg(g.relid::int8 order by g.relid) from cdc.log_parts as g), -- if re-created, it lost rows
      'attached', ( -- so has a part that was detached for a while: its row version shows that
        select jsonb_agg(g.xmin::text::int8 order by g.inhrelid)
        from pg_inherits as g
        where g.inhparent = to_regclass('cdc.change_log')
      )
    )
  end
  || case when i.conflict is null then '{}' else jsonb_build_object('conflict', i.conflict) end
  || case when s.list is null then '{}' else jsonb_build_object('strays', s.list) end
  || case
    -- Without event triggers no event shows that a trigger of the change log was disabled or replaced. Its row version
    -- does.
    when l.relid is null or exists (select from pg_event_trigger as t where t.evtname like '\_cdc\_0\_%') then '{}'
    else jsonb_build_object(
      'triggers',
      (
        select jsonb_agg(jsonb_build_array(t.oid::int8, t.xmin::text) order by t.oid)
        from pg_trigger as t
        where t.tgrelid = w.oid and t.tgname like '!cdc\_%'
      )
    )
  end
from wanted as w
join pg_namespace as n on n.oid = w.relnamespace
left join columns as c on c.attrelid = w.oid
left join in_publication as i on i.relid = w.oid
left join published as p on p.relid = w.oid
left join strays as s on s.root = w.oid
left join logged as l on l.relid = w.oid
left join entries as e on e.relid = w.oid;
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
revoke all on function cdc.table_snapshots(oid[]) from public;
revoke all on function cdc.table_snapshot(oid) from public;
