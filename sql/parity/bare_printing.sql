-- What the texts of values of a server's own types are made of, without the functions of cdc: the row versions of enum
-- labels, and the attributes of the composite types, dropped ones counted. Rows of any age show them as they are now.
select pg_catalog.concat_ws(' ', e.oid, e.xmin, e.enumlabel)
from pg_catalog.pg_enum as e
union all
select pg_catalog.concat_ws(
  ' ',
  c.oid,
  c.relnatts,
  (
    select pg_catalog.string_agg(pg_catalog.concat_ws(':', a.attnum, a.atttypid), ',' order by a.attnum)
    from pg_catalog.pg_attribute as a
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  )
)
from pg_catalog.pg_class as c
join pg_catalog.pg_type as t on t.oid = c.reltype
where
  c.relkind = 'c'
  or t.oid in (select a.atttypid from pg_catalog.pg_attribute as a)
  or t.typarray in (select a.atttypid from pg_catalog.pg_attribute as a)
  or t.oid in (select d.typbasetype from pg_catalog.pg_type as d)
