-- The content of the slot. A logical message that this source has not signed is replaced by its prefix, up to 63 bytes,
-- and a hash: any role can write such messages, of any size and number. A signature comes before the content that it
-- signs. Byte 77 is M. The flags and the LSN of a message take 9 bytes, its prefix ends with a zero byte, and four
-- bytes contain the length of its content.
select
  p.lsn,
  p.xid,
  case
    when pg_catalog.get_byte(p.data, 0) <> 77 then p.data
    when cdc.is_signed(pg_catalog.substr(p.data, c.start, 64), pg_catalog.substr(p.data, c.start + 64)) then p.data
    when pg_catalog.substr(p.data, 11) = pg_catalog.decode('6364632e61706172740000000000', 'hex') -- cdc.apart, empty
      then p.data
    else
      pg_catalog.substr(p.data, 1, 10)
      || coalesce(
        pg_catalog.substr(
          p.data, 11, nullif(pg_catalog.position(pg_catalog.substr(p.data, 11, 64), pg_catalog.decode('00', 'hex')), 0)
        ),
        pg_catalog.decode('2e2e2e00', 'hex')
      )
      || pg_catalog.int4send(32)
      || pg_catalog.sha256(p.data)
  end as data
from ({peek}) as p
cross join lateral (
  select
    case
      when pg_catalog.substr(p.data, 11, 8) = pg_catalog.decode('6364632e64646c00', 'hex') then 23 -- cdc.ddl
      when pg_catalog.substr(p.data, 11, 11) = pg_catalog.decode('6364632e626561636f6e00', 'hex') then 26 -- cdc.beacon
    end as start
) as c
