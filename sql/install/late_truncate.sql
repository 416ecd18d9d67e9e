-- Tell other lakes of this database that a partition may have been truncated while it had no trigger. Only the lake whose
-- drain creates the trigger would know it.
select cdc.emit('table_truncate', pg_catalog.jsonb_build_object(
  'tag', 'TRUNCATE TABLE',
  'late', true,
  'objects', pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object(
    'type', 'table', 'identity', %(name)s::text, 'relid', %(relid)s::int8, 'subid', 0
  ))
))
where (select pg_catalog.count(*) from cdc.settings as s where s.name = 'publications') > 1
