-- What the texts of a table's values are made of beside its rows: labels of enums, and the attributes of composite
-- types. Both show in rows of any age, as they are now.
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
  select pg_catalog.jsonb_path_query(c.details, '$.enum_labels[*]')
  union all
  select pg_catalog.jsonb_path_query(c.details, '$.inner_labels[*]')
  union all
  select pg_catalog.jsonb_path_query(c.details, '$.inner_rows')
) as f (fact)
