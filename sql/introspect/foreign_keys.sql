-- Foreign keys between the user's tables, as (name, referencing table, referenced table).
select k.conname, k.conrelid::int8, k.confrelid::int8
from pg_catalog.pg_constraint as k
where k.contype = 'f' and k.conparentid = 0 and k.conrelid <> k.confrelid
order by k.conrelid, k.conname
