-- The rows of exactly the transactions that the newer of two snapshots shows and the older one does not, in the order of
-- their effects. Both bounds on xid only spare work.
select
  l.xid::text,
  (l.lsn - '0/0')::int8,
  l.relid::int8,
  l.op,
  l.old,
  l.new
from cdc.change_log as l
where l.xid >= pg_catalog.pg_snapshot_xmin({since})
  and l.xid < pg_catalog.pg_snapshot_xmax({upto})
  and pg_catalog.pg_visible_in_snapshot(l.xid, {upto})
  and not pg_catalog.pg_visible_in_snapshot(l.xid, {since})
order by l.lsn, l.xid
