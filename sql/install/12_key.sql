-- The key that signs messages. sha256() is built in, HMAC is not. The two padded keys are therefore stored, and signing
-- needs no extension. If the key was lost and a padded key was not, the key is restored from that: what it has signed
-- stays valid.
do $install$
declare
  secret bytea := (select s.value from cdc.signing_key as s where s.name = 'hmac_key');
  padded bytea := (select s.value from cdc.signing_key as s where s.name = 'hmac_inner');
  inner_pad bytea := decode(repeat('36', 64), 'hex');
  outer_pad bytea := decode(repeat('5c', 64), 'hex');
begin
  if secret is null and padded is not null then
    secret := substr(padded, 1, 32);
    for i in 0 .. 31 loop
      secret := set_byte(secret, i, get_byte(secret, i) # get_byte(inner_pad, i));
    end loop;
  end if;
  secret := coalesce(secret, sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));
  for i in 0 .. length(secret) - 1 loop
    inner_pad := set_byte(inner_pad, i, get_byte(inner_pad, i) # get_byte(secret, i));
    outer_pad := set_byte(outer_pad, i, get_byte(outer_pad, i) # get_byte(secret, i));
  end loop;
  insert into cdc.signing_key (name, value)
  values ('hmac_key', secret), ('hmac_inner', inner_pad), ('hmac_outer', outer_pad)
  on conflict (name) do update set value = excluded.value where signing_key.value is distinct from excluded.value;
end
$install$;
