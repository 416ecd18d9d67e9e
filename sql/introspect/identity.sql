-- The values that must stay the same for the log to be one history. The timeline is that of the WAL being written: the
-- control file contains it only after the next checkpoint.
select
  (select s.system_identifier::text from pg_catalog.pg_control_system() as s) as system_id,
  ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::pg_catalog.bit(32)::int4
    as timeline,
  (select d.oid::int8 from pg_catalog.pg_database as d where d.datname = pg_catalog.current_database()) as database_oid,
  (
    select coalesce(pg_catalog.jsonb_object_agg(p.pubname, p.oid::int8), '{}')
    from pg_catalog.pg_publication as p
    where p.pubname = any (%(publications)s)
  ) as publications
