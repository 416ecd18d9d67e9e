-- The command that resets each setting of a role or database that switches capture off.
select
  pg_catalog.format('alter %s reset %s', w.whose, pg_catalog.split_part(c.setting, '=', 1)) as remedy
from pg_catalog.pg_db_role_setting as s
left join pg_catalog.pg_roles as r on r.oid = s.setrole
left join pg_catalog.pg_database as d on d.oid = s.setdatabase
cross join lateral pg_catalog.unnest(s.setconfig) as c (setting)
cross join lateral (
  select
    case
      when d.oid is null then pg_catalog.format('role %s', coalesce(pg_catalog.quote_ident(r.rolname), 'all'))
      when r.oid is null then pg_catalog.format('database %I', d.datname)
      else pg_catalog.format('role %I in database %I', r.rolname, d.datname)
    end as whose
) as w
where case pg_catalog.split_part(c.setting, '=', 1)
  when 'event_triggers' then not pg_catalog.split_part(c.setting, '=', 2)::boolean -- false, no and 0 switch it off too
  else c.setting = 'cdc.capture=off'
end
order by 1
