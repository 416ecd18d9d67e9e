-- How many row changes each table of the user has seen, and in how many seconds. The seconds are NULL if the counts
-- were never reset: the counts survive a restart, so their start is not known.
select
  s.relid::int8,
  (s.n_tup_ins + s.n_tup_upd + s.n_tup_del)::int8 as changes,
  case
    when d.stats_reset is not null
      then greatest(1, pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - d.stats_reset))
  end::int8 as seconds
from pg_catalog.pg_stat_user_tables as s
cross join pg_catalog.pg_stat_database as d
where d.datname = pg_catalog.current_database()
