-- Foreign keys between the user's tables: name, referencing table, referenced table, columns of both by number, and the
-- reason why the rows of the tables need not satisfy it. Such a reason is that equal values can have different texts,
-- or that the server itself never checked the rows.
select
  k.conname,
  k.conrelid::int8,
  k.confrelid::int8,
  k.conkey::int4[],
  k.confkey::int4[],
  case
    when not k.convalidated then 'it is NOT VALID'
    when pg_catalog.to_jsonb(k) ->> 'conperiod' = 'true' then 'it is one of periods'
    when exists (
      select
      from pg_catalog.pg_attribute as a
      join pg_catalog.pg_collation as l on l.oid = a.attcollation and not l.collisdeterministic
      where (a.attrelid = k.conrelid and a.attnum = any (k.conkey))
        or (a.attrelid = k.confrelid and a.attnum = any (k.confkey))
    ) then 'a collation of it is not deterministic'
  end
from pg_catalog.pg_constraint as k
where k.contype = 'f' and k.conparentid = 0
order by k.conrelid, k.conname
