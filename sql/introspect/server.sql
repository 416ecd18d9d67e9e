-- The facts about server and role that the preflight needs.
select
  pg_catalog.current_setting('server_version_num')::int as version,
  pg_catalog.current_setting('wal_level') as wal_level,
  pg_catalog.current_setting('max_replication_slots')::int as slots,
  (select pg_catalog.count(*)::int from pg_catalog.pg_replication_slots) as slots_used,
  pg_catalog.current_setting('max_wal_senders')::int as senders,
  (select pg_catalog.count(*)::int from pg_catalog.pg_stat_replication) as senders_used,
  pg_catalog.pg_is_in_recovery() as standby,
  pg_catalog.current_setting('server_encoding') as encoding,
  pg_catalog.current_database() as database,
  current_user as role,
  pg_catalog.has_database_privilege(pg_catalog.current_database(), 'create')
  or exists (select from pg_catalog.pg_namespace as n where n.nspname = 'cdc') as creates,
  r.rolsuper as superuser,
  r.rolreplication as replication
from pg_catalog.pg_roles as r
where r.rolname = current_user
