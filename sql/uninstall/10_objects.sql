-- Everything that sql/install made, in the reverse order. The publication and the slot are dropped by name by
-- `cdc uninstall`; by hand: drop publication cdc; select pg_drop_replication_slot('cdc').

drop event trigger if exists _cdc_0_command;
drop event trigger if exists _cdc_0_drop;
drop event trigger if exists _cdc_0_rewrite;
drop schema if exists cdc cascade;
