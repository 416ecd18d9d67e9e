-- Drop everything that sql/install created, in the reverse order. `cdc uninstall` drops the publication and the slot by
-- name; by hand: drop publication cdc; select pg_drop_replication_slot('cdc').

do $uninstall$
begin
  if to_regprocedure('cdc.withdraw(oid[])') is not null then
    perform cdc.withdraw('{}');
  end if;
end
$uninstall$;
drop event trigger if exists _cdc_0_command;
drop event trigger if exists _cdc_0_drop;
drop event trigger if exists _cdc_0_rewrite;
drop schema if exists cdc cascade;
