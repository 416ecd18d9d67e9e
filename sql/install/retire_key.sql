-- Retire the signing key; `12_key` then creates another one. No transaction that signed with it is open, as each holds
-- a lock of the table. So the key needs to verify nothing of a transaction that begins later.
do $install$
declare
  bound text;
begin
  lock table cdc.signing_key in access exclusive mode nowait;
  bound := pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text;
  update cdc.signing_key
  set name = pg_catalog.replace(name, 'hmac_', '') || ' before ' || bound
  where name in ('hmac_inner', 'hmac_outer');
  delete from cdc.signing_key where name = 'hmac_key';
end
$install$;
