-- The identity of the server that answers: the cluster, the start time of its process, and whether it is a standby.
select pg_catalog.concat_ws(
  ' ',
  s.system_identifier,
  pg_catalog.pg_postmaster_start_time() at time zone 'UTC',
  case when pg_catalog.pg_is_in_recovery() then 'standby' end
)
from pg_catalog.pg_control_system() as s
