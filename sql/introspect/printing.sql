-- What the texts of a table's values are made of beside its rows: labels of enums, and the attributes of composite
-- types. Both show in rows of any age, as they are now. A label that was renamed and renamed back has another row
-- version, and a type that had another attribute for a while has a dropped one more.
select c.attrelid::int8, pg_catalog.concat_ws(' ', c.attnum, f.fact)
from (
  select a.attrelid, a.attnum, cdc.type_details(a.atttypid) as details
  from pg_catalog.pg_attribute as a
  where a.attrelid = any (%(relids)s::pg_catalog.oid[])
    and a.attnum > 0
    and not a.attisdropped
    and a.atttypid >= 16384
) as c
cross join lateral (
  select pg_catalog.concat_ws(' ', e.oid, e.xmin, e.enumlabel)
  from (
    select pg_catalog.jsonb_path_query(c.details, '$.enum_labels[*].oid')
    union all
    select pg_catalog.jsonb_path_query(c.details, '$.inner_labels[*].oid')
  ) as l (oid)
  join pg_catalog.pg_enum as e on e.oid = l.oid::int8::pg_catalog.oid
  union all
  select c.details ->> 'inner_rows'
) as f (fact)
