-- Facts that allow or prevent capture by triggers, for every ordinary and partitioned table of the user.
select
  c.oid::int8 as relid,
  pg_catalog.pg_get_userbyid(c.relowner) as owner,
  pg_catalog.pg_has_role(i.oid, c.relowner, 'usage') as owned,
  c.relkind = 'p' or exists (select from pg_catalog.pg_inherits as i where c.oid in (i.inhparent, i.inhrelid)) as family,
  (
    select m.amname
    from pg_catalog.pg_am as m
    where m.oid = c.relam
      and c.relkind = 'r'
      and m.amhandler <> 'pg_catalog.heap_tableam_handler'::pg_catalog.regproc
  ) as method,
  exists (select from pg_catalog.pg_subscription_rel as r where r.srrelid = c.oid) as subscribed,
  coalesce(
    (
      select pg_catalog.array_agg(pg_catalog.format('%%I %%s', a.attname, a.atttypid::pg_catalog.regtype) order by a.attnum)
      from pg_catalog.pg_index as i
      join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum = any (i.indkey::int2[])
      join pg_catalog.pg_type as t on t.oid = a.atttypid
      join pg_catalog.pg_type as e on e.oid = case when t.typelem <> 0 and t.typlen = -1 then t.typelem else t.oid end
      where i.indrelid = c.oid
        and (i.indisprimary or i.indisreplident)
        and e.typname in (
          'regproc', 'regprocedure', 'regoper', 'regoperator', 'regclass', 'regtype', 'regconfig', 'regdictionary',
          'regrole', 'regnamespace', 'regcollation', 'aclitem'
        )
        and e.typnamespace = 'pg_catalog'::pg_catalog.regnamespace
    ),
    '{}'
  ) as unstable_keys
from pg_catalog.pg_class as c
cross join ( -- the role that installs the triggers
  select coalesce((select n.nspowner from pg_catalog.pg_namespace as n where n.nspname = 'cdc'), r.oid) as oid
  from pg_catalog.pg_roles as r
  where r.rolname = current_user
) as i
where c.relkind in ('r', 'p') and c.oid >= 16384
