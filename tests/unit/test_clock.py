"""A clock of a runner that steps back changes no decision."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support_ledger import ledger_of
from toolkit.lake import proofs, scans
from toolkit.quality import incremental
from toolkit.values.config import CheckConfig, Config

pytestmark = pytest.mark.unit


def test_a_name_shows_the_proof_of_the_later_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of before was proven by a clock that was ahead: the view showed its rows again."""
    noon = datetime(2026, 11, 25, 12, tzinfo=UTC)
    rows = [
        {"relid": 1, "relation": "public__t", "batch_id": 7, "proven_at": noon + timedelta(hours=2)},
        {"relid": 2, "relation": "public__t", "batch_id": 9, "proven_at": noon},
        {"relid": 3, "relation": "public__u", "batch_id": None, "proven_at": noon},  # of an older version
        {"relid": 4, "relation": None, "batch_id": 9, "proven_at": None},
    ]
    for order in (rows, rows[::-1]):
        monkeypatch.setattr(scans, "scan", lambda *_, found=order: iter(found))
        assert {name: row["relid"] for name, row in proofs.proofs_by_name(Config().lake_access).items()} == {
            "public__t": 2, "public__u": 3,
        }  # fmt: skip


@pytest.mark.parametrize(("hours", "chosen"), [(1.0, True), (200.0, False), (-1.0, False)])
def test_a_full_comparison_from_the_future_is_due_again(
    monkeypatch: pytest.MonkeyPatch, hours: float, chosen: bool
) -> None:
    """After the step back it would be due only when the clock has caught up."""
    config = Config(check=CheckConfig(full_hours=24.0))
    row = dict.fromkeys(("lsn", "snapshot_id", "batch_id", "full_lsn"), 8) | {
        "status": "identical", "rows": config.check.full_rows, "fingerprint": "x",
        "full_at": datetime.now(UTC) - timedelta(hours=hours),
    }  # fmt: skip
    monkeypatch.setattr(proofs, "proofs_by_relid", lambda _: {1: row})
    assert (1 in incremental.candidates(ledger_of(config), config.check)) == chosen
