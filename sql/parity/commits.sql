-- The begin and commit messages of the transactions that the slot still holds, up to an LSN. Consumes nothing. The
-- messages of DDL are requested too: without them the server leaves out a transaction that has nothing else. B: final
-- LSN, time, xid. C: flags, commit LSN, end LSN, time.
select data
from pg_catalog.pg_logical_slot_peek_binary_changes(
  %(slot)s, %(upto)s::pg_catalog.pg_lsn, null, 'proto_version', '1', 'publication_names', %(publications)s,
  'messages', 'true'
)
where pg_catalog.get_byte(data, 0) in (66, 67)
