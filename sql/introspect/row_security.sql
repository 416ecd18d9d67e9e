-- Tables whose row security may hide rows from a role that reads them. The server does not apply it to superusers, to
-- roles with BYPASSRLS, and, unless it is forced, to the roles that own the table.
select c.oid::int8 as relid
from pg_catalog.pg_class as c
join pg_catalog.pg_roles as r on r.rolname = %(role)s
where c.oid = any (%(relids)s::pg_catalog.oid[])
  and c.relrowsecurity
  and not (r.rolsuper or r.rolbypassrls)
  and (c.relforcerowsecurity or not pg_catalog.pg_has_role(r.oid, c.relowner, 'USAGE'))
order by c.oid
