"""The comparison of touched keys."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support_history import column, snapshot
from tests.unit.lines import line_of
from toolkit.lake import row_lines
from toolkit.lake.row_lines import Side
from toolkit.quality import incremental, row_classes
from toolkit.quality.incremental import Proof
from toolkit.quality.report import TableCheck
from toolkit.quality.row_classes import Kept
from toolkit.values.config import CheckConfig
from toolkit.values.lsn import Lsn
from toolkit.values.namespaces import Namespaces
from toolkit.values.outcome import CheckStatus
from toolkit.values.row_line import comparison
from toolkit.values.table import TableVersion

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("lake", "status", "counts"),
    [
        ({"ABC": "1", "abc": "2"}, CheckStatus.IDENTICAL, (2, 0, 0, 0)),
        ({"ABC": "1", "abc": "9"}, CheckStatus.DIFFERENT, (1, 1, 0, 0)),
        ({"ABC": "1"}, CheckStatus.DIFFERENT, (1, 0, 0, 1)),
    ],
)
def test_a_row_that_only_the_server_calls_equal_to_a_touched_key_is_compared_too(
    monkeypatch: pytest.MonkeyPatch, lake: dict[str, str], status: CheckStatus, counts: tuple[int, ...]
) -> None:
    """A column of a collation without case, its replica identity by an index of collation "C".

    The server sends the rows `ABC` and `abc` for the key `ABC`. The lake was asked for `ABC` alone, so that `abc` was
    reported as removed.
    """
    version = TableVersion.from_json(snapshot("t", [column(1, "code", "text"), column(2, "v", "text")]))
    side = Side(comparison(version, 1), 1, Namespaces())
    assert side.plan.key == (0,)

    def lines_of_keys(_: Any, __: Side, keys: Any, **_more: Any) -> list[bytes]:
        return [line_of((key, lake[key])) for (key,) in keys if key in lake]

    monkeypatch.setattr(row_lines, "lines_of_keys", lines_of_keys)
    proof = Proof(Lsn(1), 1, 1, 2, Lsn(1), datetime.now(UTC), "")
    result = TableCheck("public.t", version.relid, CheckStatus.NOT_TAKEN)
    source = [line_of(("ABC", "1")), line_of(("abc", "2"))]
    spark: Any = None
    found = incremental.compared(CheckConfig(), spark, side, source, [("ABC",)], proof, result)
    assert found.status == status
    assert (found.identical, found.modified, found.added, found.removed) == counts


@pytest.mark.parametrize("wide", [True, False])
def test_touched_rows_of_many_bytes_are_spooled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wide: bool) -> None:
    """The rows of up to 200,000 touched keys were held in memory on both sides, however long they were."""
    version = TableVersion.from_json(snapshot("t", [column(1, "code", "text"), column(2, "v", "text")]))
    side, count = Side(comparison(version, 1), 1, Namespaces()), 2_000 if wide else 20
    asked: list[bool] = []

    def rows() -> Iterator[bytes]:
        yield from (line_of((str(n), f"{n}" * (100_000 // len(str(n))))) for n in range(count))

    def lines_of_keys(_: Any, __: Side, keys: Any, *, long: bool) -> Iterator[bytes]:
        asked.append(long)
        return rows() if len(keys) == count else iter(())

    monkeypatch.setattr(row_lines, "lines_of_keys", lines_of_keys)
    proof = Proof(Lsn(1), 1, 1, count, Lsn(1), datetime.now(UTC), "")
    result = TableCheck("public.t", version.relid, CheckStatus.NOT_TAKEN)
    spark: Any = None
    tracemalloc.start()
    source = Kept(rows(), tmp_path / "touched.lines")
    keys = [(str(n),) for n in range(count)]
    found = incremental.compared(CheckConfig(), spark, side, source, keys, proof, result, directory=tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.status, found.rows, found.identical) == (CheckStatus.IDENTICAL, count, count)
    assert asked == [wide] and peak < 3 * row_classes._PART_BYTES
    assert list(source) == list(rows())
