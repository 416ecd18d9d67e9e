-- Code of other roles that the server may run when it plans a SELECT of the table, or of its partitions: functions of
-- constant arguments in index expressions and predicates, in statistics and in partition keys. CHECK constraints are
-- not used in planning while constraint_exclusion is off. This reads the system catalogs only, so it runs none of that
-- code itself.
with recursive tree (relid, kind) as (
  select c.oid, c.relkind
  from pg_catalog.pg_class as c
  where c.oid = %(relid)s::pg_catalog.oid
  union
  select c.oid, c.relkind
  from tree as t
  join pg_catalog.pg_inherits as i on i.inhparent = t.relid and t.kind = 'p'
  join pg_catalog.pg_class as c on c.oid = i.inhrelid
),

planned (what, class, object) as (
  select 'index ' || i.indexrelid::pg_catalog.regclass, 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid
  from tree as t
  join pg_catalog.pg_index as i on i.indrelid = t.relid
  union all
  select pg_catalog.format('statistics %%I.%%I', n.nspname, s.stxname), 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, s.oid
  from tree as t
  join pg_catalog.pg_statistic_ext as s on s.stxrelid = t.relid
  join pg_catalog.pg_namespace as n on n.oid = s.stxnamespace
  union all
  select 'the partition key of ' || t.relid::pg_catalog.regclass, 'pg_catalog.pg_class'::pg_catalog.regclass, t.relid
  from tree as t
  where t.kind = 'p'
),

called (what, class, object) as (
  select p.what, d.refclassid, d.refobjid
  from planned as p
  join pg_catalog.pg_depend as d on d.classid = p.class and d.objid = p.object
),

code (what, code, owner) as (
  select c.what, 'function ' || f.oid::pg_catalog.regprocedure, f.proowner
  from called as c
  left join pg_catalog.pg_operator as o on c.class = 'pg_catalog.pg_operator'::pg_catalog.regclass and o.oid = c.object
  join pg_catalog.pg_proc as f
    on (c.class = 'pg_catalog.pg_proc'::pg_catalog.regclass and f.oid = c.object)
    or f.oid in (o.oprcode, o.oprrest, o.oprjoin)
  union all
  select c.what, 'domain ' || y.oid::pg_catalog.regtype, y.typowner
  from called as c
  join pg_catalog.pg_type as y on c.class = 'pg_catalog.pg_type'::pg_catalog.regclass and y.oid = c.object
  where y.typtype = 'd'
)

select c.what, c.code, pg_catalog.quote_ident(r.rolname)
from code as c
join pg_catalog.pg_roles as r on r.oid = c.owner
where not r.rolsuper and r.rolname <> current_user
order by c.what, c.code
limit 1
