"""Images of the change log: the text form of a record, split into cells."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from toolkit.decode import logged_rows
from toolkit.decode.task import Binding
from toolkit.values.errors import DecodeError

pytestmark = pytest.mark.unit


def _images(texts: list[str | None], attnums: list[int], width: int, absent: tuple[int, ...] = ()) -> list[object]:
    images = logged_rows.record_images(pa.array(texts, pa.string()), attnums, width, absent)
    return list(images.to_pylist())


def test_quotes_backslashes_newlines_null_and_empty() -> None:
    texts = ['(1,"a ""b"" \\\\ c",,"")', None, '(2,"x\ny\r\n,",3,\u00e9)', "(,,,)"]
    assert _images(texts, [1, 2, 4, 5], 6) == [
        ["1", 'a "b" \\ c', None, None, "", None],
        None,
        ["2", "x\ny\r\n,", None, "3", "\u00e9", None],
        [None] * 6,
    ]


def test_one_column_and_none_differ() -> None:
    assert _images(["()", "(1)", '("")', None], [2], 2) == [[None, None], [None, "1"], [None, ""], None]
    assert _images(["()", None], [], 0) == [[], None]


def test_unpublished_cells_stay_out_of_the_image() -> None:
    assert _images(["(1,2,3)"], [1, 2, 3], 3, absent=(2,)) == [["1", None, "3"]]


@pytest.mark.parametrize("text", ["", "(", "1,2", "(1,2", "1)"])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(DecodeError, match="not the text of a record"):
        _images([text], [1, 2], 2)


def test_an_open_quote_takes_no_other_record_along() -> None:
    """Found by `make soak`: two records were read as one, and the second row did not exist."""
    with pytest.raises(DecodeError, match="not the text of a record"):
        _images(['(1,"a)', '(b")'], [1, 2], 2)


def _log(ops: str, old: list[str | None], new: list[str | None]) -> logged_rows.LogRows:
    count = np.arange(len(ops), dtype=np.int64)
    same = np.full(len(ops), 7, np.int64)
    texts = (pa.array(list(ops), pa.string()), pa.array(old, pa.string()), pa.array(new, pa.string()))
    return logged_rows.LogRows(count, same, count, same + 1, same, same, same, same, *texts)


def test_rows_truncates_and_what_could_not_be_logged() -> None:
    layout = Binding(-1, 7, (1, 3), 3, 12)
    log = _log("IUTFMD", [None, "(1,a)", None, None, None, "(1,b)"], ["(1,a)", "(1,b)", None, "too large", "ddl", None])
    found = [
        row for batch in logged_rows.events(log, {7: [layout]}, batch_id=1, generation=1) for row in batch.to_pylist()
    ]
    shown = [(row["kind"], row["op"], row["old"], row["new"]) for row in found]
    assert shown == [
        ("row", "I", None, ["1", None, "a"]),
        ("row", "U", ["1", None, "a"], ["1", None, "b"]),
        ("truncate", "T", None, None),
        ("row", "D", ["1", None, "b"], None),
        ("gap", None, None, None),
    ]
    assert "too large" in found[-1]["payload"] and found[-1]["ordinal"] == 3
    assert [row["ordinal"] for row in found] == [0, 1, 2, 5, 3]


@pytest.mark.parametrize("layouts", [{}, {7: [Binding(-1, 7, (1, 2), 2, 12)]}, {7: [Binding(-1, 7, (), 0, 12)]}])
def test_images_that_fit_no_schema_version_are_kept_with_a_gap(layouts: dict[int, list[Binding]]) -> None:
    batches = list(logged_rows.events(_log("I", [None], ["(1,a,)"]), layouts, batch_id=1, generation=1))
    row, gap = (row for batch in batches for row in batch.to_pylist())
    assert (row["new"], row["schema_id"], gap["kind"]) == (["1", "a", None], None, "gap")


@pytest.mark.parametrize("layouts", [{}, {7: [Binding(-1, 7, (1, 3, 4), 4, 12)]}])
def test_the_gap_of_rows_that_fit_no_version_is_at_the_first_of_them(layouts: dict[int, list[Binding]]) -> None:
    """It was at the later row that could not be logged, and the rows before it counted as known."""
    log = _log("IIF", [None] * 3, ["(1,a)", "(2,b)", "too large"])
    *_, last = logged_rows.events(log, layouts, batch_id=1, generation=1)
    (gap,) = last.to_pylist()
    assert (gap["kind"], gap["ordinal"]) == ("gap", 0)
