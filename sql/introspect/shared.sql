-- What the lake of this session shares with another one, and the slot of that one: a publication that one of them
-- maintains, or the change log, which only the lake that uses it may be sent.
with published as (
  select s.slot, f.name
  from cdc.settings as s
  cross join lateral pg_catalog.jsonb_array_elements_text(pg_catalog.convert_from(s.value, 'UTF8')::jsonb) as f (name)
  where s.name = 'publications'
),

logging as (
  select s.slot
  from cdc.settings as s
  where s.name = 'logs'
),

sent as ( -- the lakes whose publications send the change log
  select distinct b.slot
  from published as b
  join pg_catalog.pg_publication as p on p.pubname = b.name
  where p.puballtables
    or exists (
      select from pg_catalog.pg_publication_namespace as n
      where n.pnpubid = p.oid and n.pnnspid = 'cdc'::pg_catalog.regnamespace
    )
    or exists (
      select from pg_catalog.pg_publication_rel as r
      join cdc.log_parts as l on l.relid = r.prrelid
      where r.prpubid = p.oid
    )
),

shared as (
  select 'the change log' as what, l.slot as one, o.slot as two
  from logging as l
  join (select slot from logging union select slot from sent) as o on o.slot <> l.slot
  union all
  select 'publication ' || pg_catalog.quote_ident(a.name), a.slot, b.slot
  from published as a
  join published as b on b.name = a.name and b.slot <> a.slot
  where a.slot = pg_catalog.current_setting('cdc.slot') and a.name = %(own)s
)

select
  s.what,
  case when s.one = pg_catalog.current_setting('cdc.slot') then s.two else s.one end as other
from shared as s
where pg_catalog.current_setting('cdc.slot') in (s.one, s.two)
order by 1, 2
