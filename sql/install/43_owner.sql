-- Owner of what the toolkit keeps in schema cdc. The functions that run in sessions of other roles have the rights of
-- their owner, so they belong to a role that owns the toolkit's objects, and has no other right: no login, no
-- membership, no member. The schema stays with the role that runs `cdc init`. That role must be a superuser, because
-- others would need a membership in the owner. Without a superuser, everything belongs to the role of `cdc init`.
--
-- These stay with the role of `cdc init`, since they change tables and publications of the user. Only the owner may run
-- them: cdc.publish_new adds new tables to the publication, cdc.let_read grants SELECT on them, and cdc.guard_new puts
-- triggers on partitions.
do $install$
declare
  others text[] := array[
    'admit', 'guard', 'guard_new', 'let_read', 'log_table', 'own_reader', 'present', 'publish_new', 'run_uncaptured',
    'unlog_table', 'withdraw'
  ];
  step record;
begin
  if not (select r.rolsuper from pg_roles as r where r.rolname = current_user) then
    return;
  end if;
  if to_regrole('cdc_owner') is null then
    create role cdc_owner nologin noinherit;
  end if;
  if exists (
    select from pg_roles as r
    where r.rolname = 'cdc_owner'
      and (
        r.rolsuper or r.rolcanlogin or r.rolcreaterole or r.rolcreatedb or r.rolreplication or r.rolbypassrls
        or exists (select from pg_auth_members as m where r.oid in (m.roleid, m.member))
      )
  ) then
    raise exception using
      errcode = 'insufficient_privilege',
      message = 'role cdc_owner may log in, has rights or is a member of a role, or has members';
  end if;
  grant usage on schema cdc to cdc_owner;
  for step in
    select format('alter %s %I.%I owner to cdc_owner', case c.relkind when 'v' then 'view' else 'table' end, 'cdc', c.relname)
      as statement
    from pg_class as c
    where c.relnamespace = 'cdc'::regnamespace
      and c.relkind in ('r', 'p', 'v')
      and (c.relkind = 'v' or cdc.is_own(format('cdc.%I', c.relname)))
      and c.relowner <> 'cdc_owner'::regrole
    union all
    select format('alter function %s owner to cdc_owner', p.oid::regprocedure)
    from pg_proc as p
    where p.pronamespace = 'cdc'::regnamespace
      and p.proname <> all (others)
      and p.proname !~ '^present_\d+$'
      and p.proowner <> 'cdc_owner'::regrole
  loop
    execute step.statement;
  end loop;
  grant execute on function cdc.publish_new(oid[]), cdc.let_read(oid[], oid[]), cdc.guard_new(oid[]) to cdc_owner;
  if to_regprocedure('cdc.own_reader(oid)') is not null then
    perform cdc.own_reader(t.tgrelid)
    from pg_trigger as t
    where t.tgname in ('!cdc_row', '!cdc_insert');
  end if;
end
$install$;
