"""The invariants of a capture, I1 to I8, after whatever happened to its runs."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

from tests.postgres.test_snapshot_log import current, of, on_source
from tests.support_lake import rows_in_log
from tests.support_ledger import ledger_of
from toolkit.source import connection, slot
from toolkit.values.config import Config


def hold(config: Config, table: str = "a") -> None:
    """Assert, of a lake that a run without faults has just drained, what must hold whatever came before.

    I1: each event is there once, and the rows of a transaction are numbered without a hole. I2: none is above the
    position of the ledger, and the ledger has no hole. I3: the slot is not beyond the ledger. I4: the log's rows are
    the source's. I5: the life of each key is a chain, which `current` folds strictly. I6: the table is `ok`, so I4 had
    to hold. I7 and I8 are of runs: the caller drains again, and in other batches.
    """
    ledger = ledger_of(config)
    last = ledger.last()
    assert last is not None
    events = rows_in_log(config, "kind in ('row', 'truncate')")
    places = [(e["generation"], e["commit_lsn"], e["ordinal"], e["relid"]) for e in events]
    assert len(places) == len(set(places)), "I1: an event is there twice"
    for _, found in groupby((e for e in events if e["origin"] == "slot"), key=_transaction):
        ordinals = [e["ordinal"] for e in found]
        assert ordinals == list(range(ordinals[0], ordinals[0] + len(ordinals))), "I1: a hole in a transaction"
    assert all(e["end_lsn"] <= last.complete_to for e in events if e["origin"] != "snapshot"), "I2: above the ledger"
    batches = ledger.batches()
    assert [b.batch_id for b in batches] == list(range(1, len(batches) + 1)), "I2: a hole in the ledger"
    assert all(one.complete_to == two.from_lsn for one, two in pairwise(batches)), "I2: a gap"
    with connection.connect(config.source) as conn:
        state = slot.read_slot(conn, config.source.slot)
    assert state is None or state.confirmed_flush_lsn <= last.complete_to, "I3: the slot is beyond the ledger"
    assert of(config, table).state == "ok", "I6: stale without a cause"
    assert current(config, table) == on_source(config, table), "I4: the log differs from the source"


def _transaction(event: dict[str, Any]) -> tuple[int, int]:
    return event["generation"], event["commit_lsn"]
