-- The rows of exactly the transactions that the newer of two snapshots shows and the older one does not, in the order
-- of their effects. Both bounds on xid only save work. COPY may double the length of a text, and no server sends a row
-- of 1 GB. A row that could be as large is read as an image that could not be made, because it would stop the drain of
-- every table.
select
  l.xid::text,
  (l.lsn - '0/0')::int8,
  l.relid::int8,
  case when t.large then 'F' else l.op end as op,
  case when not t.large then l.old end as old,
  case when t.large then '54000 images of more than 500 MB of text cannot be read from the change log' else l.new end as new
from cdc.logged_changes as l
cross join lateral (
  select
    coalesce(pg_catalog.octet_length(l.old), 0) + coalesce(pg_catalog.octet_length(l.new), 0) > 500000000
) as t (large)
where l.xid >= pg_catalog.pg_snapshot_xmin({since})
  and l.xid < pg_catalog.pg_snapshot_xmax({upto})
  and pg_catalog.pg_visible_in_snapshot(l.xid, {upto})
  and not pg_catalog.pg_visible_in_snapshot(l.xid, {since})
order by l.lsn, l.xid
