-- The facts that must not change for a log to contain every change of a table since another snapshot: the files of the
-- table and of its partitions, their inheritance, and the catalog rows by which they are published and logged. If it has
-- triggers, these facts of the change log count too: `cdc.purge_log` gives its parts other files, but only a rewrite, as
-- by SET UNLOGGED, gives them other TOAST tables. The xmin of a catalog row changes with the row, so an object that was
-- altered and restored differs too: SET SCHEMA writes the row of the table's dependency on its schema. All facts are
-- those of the transaction's snapshot.
with recursive tree (root, relid) as (
  select r.relid, r.relid
  from pg_catalog.unnest(%(relids)s::pg_catalog.oid[]) as r (relid)
  union all
  select t.root, i.inhrelid
  from tree as t
  join pg_catalog.pg_class as c on c.oid = t.relid and c.relkind = 'p'
  join pg_catalog.pg_inherits as i on i.inhparent = t.relid and not i.inhdetachpending
),

family (root, relid) as (
  select t.root, t.relid from tree as t
  union
  select r.relid, a.relid
  from pg_catalog.unnest(%(relids)s::pg_catalog.oid[]) as r (relid)
  cross join lateral pg_catalog.pg_partition_ancestors(r.relid) as a (relid)
),

triggers (relid, trigger, version) as (
  select t.tgrelid, t.oid, t.xmin
  from pg_catalog.pg_trigger as t
  join pg_catalog.pg_proc as f on f.oid = t.tgfoid
  join pg_catalog.pg_namespace as n on n.oid = f.pronamespace and n.nspname = 'cdc'
),

kin (root, relid, is_log) as (
  select f.root, f.relid, false from family as f
  union all
  select f.root, c.oid, true
  from (select distinct f.root from family as f join triggers as t on t.relid = f.relid) as f
  cross join pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace and n.nspname = 'cdc'
  where c.relkind in ('r', 'p') and c.relname ~ '^change_log(_\d+)?$'
),

facts (root, fact) as (
  select
    k.root,
    pg_catalog.concat_ws(
      ' ', 'class', c.oid, c.relnamespace, case when k.is_log then c.reltoastrelid else c.relfilenode end, d.xmin
    )
  from kin as k
  join pg_catalog.pg_class as c on c.oid = k.relid
  left join pg_catalog.pg_depend as d
    on d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass and d.objid = c.oid and d.objsubid = 0
    and d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
  union all
  select k.root, pg_catalog.concat_ws(' ', 'inherits', i.inhrelid, i.inhparent, i.xmin)
  from kin as k
  join pg_catalog.pg_inherits as i on i.inhrelid = k.relid
  union all
  select k.root, pg_catalog.concat_ws(' ', 'trigger', t.trigger, t.version)
  from kin as k
  join triggers as t on t.relid = k.relid
  union all
  select k.root, pg_catalog.concat_ws(' ', 'publication', p.oid, p.xmin, r.oid, r.xmin, s.oid, s.xmin)
  from kin as k
  join pg_catalog.pg_class as c on c.oid = k.relid
  cross join pg_catalog.pg_publication as p
  left join pg_catalog.pg_publication_rel as r on r.prpubid = p.oid and r.prrelid = k.relid
  left join pg_catalog.pg_publication_namespace as s on s.pnpubid = p.oid and s.pnnspid = c.relnamespace
  where p.pubname = any (%(publications)s)
)

select
  f.root::int8,
  pg_catalog.encode(
    pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.string_agg(f.fact, ',' order by f.fact collate "C"), 'UTF8')),
    'hex'
  )
from facts as f
group by f.root
