-- Drop everything that sql/install created, in the reverse order. `cdc uninstall` drops the publication and the slot by
-- name; by hand: drop publication cdc; select pg_drop_replication_slot('cdc').

do $uninstall$
begin
  if to_regprocedure('cdc.withdraw(oid[])') is not null then
    perform set_config('cdc.slot', '', true);
    perform cdc.withdraw('{}');
  end if;
end
$uninstall$;
drop event trigger if exists _cdc_before;
drop event trigger if exists _cdc_0_command;
drop event trigger if exists _cdc_0_drop;
drop event trigger if exists _cdc_0_rewrite;
drop schema if exists cdc cascade;

-- The owner of the objects. Another database of this server may still need it; then its grants here stay too.
do $uninstall$
begin
  if to_regrole('cdc_owner') is null
    or not (select r.rolsuper from pg_catalog.pg_roles as r where r.rolname = current_user)
  then
    return;
  end if;
  drop owned by cdc_owner;
  drop role cdc_owner;
exception
  when dependent_objects_still_exist then null;
end
$uninstall$;
