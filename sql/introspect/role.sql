-- One role: whether it is a superuser and has REPLICATION, and a role above it that could do all that the installer can.
select
  r.rolsuper as superuser,
  r.rolreplication as replication,
  (
    select pg_catalog.min(pg_catalog.quote_ident(a.rolname))
    from pg_catalog.pg_roles as a
    where a.oid <> r.oid
      and pg_catalog.pg_has_role(r.oid, a.oid, 'member')
      and (a.rolsuper or a.oid = (select n.nspowner from pg_catalog.pg_namespace as n where n.nspname = 'cdc'))
  ) as above
from pg_catalog.pg_roles as r
where r.rolname = %(role)s
