-- The role of this session, whether it is a superuser, and the owner of schema cdc: NULL if there is no such schema.
select
  r.rolname::text as role,
  r.rolsuper as superuser,
  (
    select pg_catalog.pg_get_userbyid(n.nspowner)::text
    from pg_catalog.pg_namespace as n
    where n.nspname = 'cdc'
  ) as owner
from pg_catalog.pg_roles as r
where r.rolname = current_user
