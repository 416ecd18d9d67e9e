-- What moves when somebody writes here: the replay position of a standby, else the next transaction id.
select case
  when pg_catalog.pg_is_in_recovery() then 'replayed to ' || pg_catalog.pg_last_wal_replay_lsn()
  else 'at transaction ' || pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())
end
