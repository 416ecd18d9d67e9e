-- Objects in schema cdc that belong neither to this role nor to a superuser, nor to the owner of the toolkit's objects.
-- Their owners could change code that runs with the rights of this role. This reads the system catalogs only, so it runs
-- no code of those owners.
select f.what, pg_catalog.pg_get_userbyid(f.owner)::text as owner
from (
  select 'schema cdc' as what, n.nspowner as owner
  from pg_catalog.pg_namespace as n
  where n.nspname = 'cdc'
  union all
  select 'schema cdc, in which it may create objects,', g.grantee
  from pg_catalog.pg_namespace as n
  cross join lateral pg_catalog.aclexplode(n.nspacl) as g
  where n.nspname = 'cdc' and g.privilege_type = 'CREATE'
  union all
  select 'relation cdc.' || pg_catalog.quote_ident(c.relname), c.relowner
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
  where n.nspname = 'cdc'
  union all
  select 'function ' || p.oid::pg_catalog.regprocedure, p.proowner
  from pg_catalog.pg_proc as p
  join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
  where n.nspname = 'cdc'
    and not ( -- copies of cdc.present, whose owners may not replace the body; REASSIGN OWNED gives them other owners
      p.proname ~ '^present_[0-9]+$'
      and p.prosrc = (
        select m.prosrc
        from pg_catalog.pg_proc as m
        where m.pronamespace = n.oid and m.proname = 'present' and m.proowner = n.nspowner and m.prolang = p.prolang
      )
    )
) as f
where f.owner not in (
  select r.oid
  from pg_catalog.pg_roles as r
  where r.rolsuper
    or r.rolname = current_user
    or ( -- the owner that `cdc init` makes (sql/install/43_owner.sql), as long as no role can become it
      r.rolname = 'cdc_owner'
      and not r.rolcanlogin
      and not exists (select from pg_catalog.pg_auth_members as m where r.oid in (m.roleid, m.member))
    )
)
order by f.what
