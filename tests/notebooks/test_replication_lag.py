"""The notebook shows waits and volumes from the ledger alone, and says so when the source does not answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.notebooks.pages import charts_without_a_network
from tests.support_ledger import ledger_of
from toolkit.demo import notebooks
from toolkit.history import commit_times
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.values.config import Config
from toolkit.values.errors import LakeError
from toolkit.values.lsn import Lsn

pytestmark = [pytest.mark.notebook, pytest.mark.spark]

_IDENTITY = SourceIdentity("1", 1, 5, {"cdc": 6})


def _record(number: int, first: int, last: int, changes: int, at: str, generation: int = 1) -> BatchRecord:
    span = Lsn(first), Lsn(last), Lsn(last)
    return BatchRecord(number, generation, *span, "slot", "cdc", _IDENTITY, changes, committed_at=at)


@pytest.fixture
def drained(lake: Config, spark: object) -> Config:
    """Three batches; the first is of an older generation."""
    (lake.root / "cdc.toml").write_text('[source]\nconninfo = "host=127.0.0.1 port=1"\n', encoding="utf-8")
    for record in (
        _record(1, 0x0, 0x9000, 99, "2025-03-01T09:00:00+00:00", generation=1),
        _record(2, 0x1000, 0x2000, 10, "2025-03-01T10:00:00+00:00", generation=2),
        _record(3, 0x2000, 0x6000, 30, "2025-03-01T10:05:00+00:00", generation=2),
    ):
        ledger_of(lake).append_empty(record)
    return lake


def test_a_batch_is_as_the_ledger_has_it(drained: Config) -> None:
    frame = commit_times.batches_frame(ledger_of(drained))
    assert frame["batch_id"].tolist() == [2, 3]  # not the generation before
    assert frame["wal_bytes"].tolist() == [0x1000, 0x4000]
    assert frame["complete_to"].tolist() == ["0/2000", "0/6000"]
    assert frame["waited_seconds"].isna().tolist() == [True, False]
    assert frame["waited_seconds"].iloc[1] == 300.0


def test_a_commit_at_a_whole_second_is_shown_beside_others(lake: Config, spark: object) -> None:
    """Its text has no fraction: one commit of a million made the frame of all fail."""
    for number, at in enumerate(("2025-03-01T10:00:00.250000+00:00", "2025-03-01T10:00:01+00:00"), 1):
        ledger_of(lake).append_empty(_record(number, 0x1000 * number, 0x1000 * (number + 1), 1, at))
    assert commit_times.batches_frame(ledger_of(lake))["waited_seconds"].iloc[1] == 0.75


def test_the_notebook_says_how_far(drained: Config, tmp_path: Path) -> None:
    out = notebooks.run(drained, "replication_lag", {}, tmp_path / "lag.html")
    cells = json.loads(out.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    text = "".join("".join(o.get("text", "")) for cell in cells for o in cell.get("outputs", ()))
    assert "2 batches, 40 changes; the log is complete to 0/6000" in text
    assert "still to drain: unknown: " in text
    assert "127.0.0.1" in text
    assert "longest wait between two commits: 300.0 s" in text
    (chart,) = charts_without_a_network(out)
    assert "committed at (UTC)" in chart


def test_no_ledger_is_one_line(lake: Config) -> None:
    with pytest.raises(LakeError, match="cdc init"):
        commit_times.batches_frame(ledger_of(lake))
