-- The position of a server: its cluster, whether it follows a primary, the end of the WAL that it has written or
-- replayed, the next transaction id that it shows, and whether a transaction that has written may be committing.
-- At the start of a page, the insert position is already after the page header.
select
  (select s.system_identifier::text from pg_catalog.pg_control_system() as s) as cluster,
  pg_catalog.pg_is_in_recovery() as follows,
  case
    when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
    else (
      select
        case
          when (w.flushed - '0/0') % pg_catalog.current_setting('wal_block_size')::int4 = 0
            and w.inserted - w.flushed <= 40 then w.flushed
          else w.inserted
        end
      from (select pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_wal_flush_lsn()) as w (inserted, flushed)
    )
  end::text as lsn,
  pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text as xid,
  -- Last, so that it is read after the position: a transaction gives up the lock of its id once snapshots show it. A
  -- session that is idle does not commit.
  exists (
    select
    from pg_catalog.pg_locks as l
    left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
    left join pg_catalog.pg_prepared_xacts as p on p.transaction = l.transactionid and l.pid is null
    where l.locktype = 'transactionid'
      and l.mode = 'ExclusiveLock'
      and a.state is distinct from 'idle in transaction'
      and coalesce(a.datname, p.database, pg_catalog.current_database()) = pg_catalog.current_database()
  ) as writing
