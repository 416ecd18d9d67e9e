"""Row classes, reports and the shape of a comparison."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from tests.unit.lines import line_of
from toolkit.lake import references, scans
from toolkit.lake.applied import Applied
from toolkit.lake.row_lines import key_ranges_sql
from toolkit.quality import expectations, parity, published, row_classes
from toolkit.quality.report import CheckReport, Classes, Reference, TableCheck, as_text
from toolkit.quality.row_classes import classify
from toolkit.source import copytext
from toolkit.values.config import Config
from toolkit.values.errors import LakeError
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CheckStatus, ProofKind
from toolkit.values.row_line import (
    KEYS,
    BucketFigures,
    Sums,
    chosen,
    comparison,
    differing,
    effective,
    fields,
    total,
)
from toolkit.values.table import ForeignKey, TableVersion

pytestmark = pytest.mark.unit

COLUMNS = ("id", "name", "city")
Row = tuple[str | None, ...]


def _classes(
    source: Sequence[Row], lake: Sequence[Row], key: Sequence[int] = (0,), samples: int = 20, **spool: Any
) -> Classes:
    lines = ([line_of(row) for row in rows] for rows in (source, lake))
    return classify(*lines, columns=COLUMNS, key=key, samples=samples, natives={}, **spool)


def _counts(found: Classes) -> tuple[int, int, int, int]:
    return found.identical, found.modified, found.added, found.removed


ROWS: list[Row] = [(str(i), f"name {i}", None) for i in range(50)]


def test_equal_sides_are_identical() -> None:
    assert _classes(ROWS, list(reversed(ROWS))) == Classes(identical=50)


def test_a_dropped_row_is_removed_and_an_extra_one_added() -> None:
    assert _counts(_classes(ROWS, ROWS[1:])) == (49, 0, 0, 1)
    assert _counts(_classes(ROWS[1:], ROWS)) == (49, 0, 1, 0)


def test_an_altered_character_names_row_and_column() -> None:
    found = _classes(ROWS, [*ROWS[1:], ("0", "Name 0", None)])
    assert _counts(found) == (49, 1, 0, 0)
    assert [s.to_dict() for s in found.samples] == [
        {"class": "modified", "key": {"id": "0"}, "columns": {"name": {"source": "name 0", "lake": "Name 0"}}}
    ]


def test_null_is_not_the_empty_string() -> None:
    assert _counts(_classes([("1", "a", None)], [("1", "a", "")])) == (0, 1, 0, 0)


def test_values_swapped_between_rows_are_found() -> None:
    assert _counts(_classes([("1", "a", None), ("2", "b", None)], [("1", "b", None), ("2", "a", None)])) == (0, 2, 0, 0)


def test_values_cannot_lean_into_their_neighbours() -> None:
    assert _counts(_classes([("1", "ab", "c")], [("1", "a", "bc")])) == (0, 1, 0, 0)


def test_a_bag_counts_copies() -> None:
    row: Row = ("1", "a", None)
    assert _counts(_classes([row] * 3, [row] * 2, key=())) == (2, 0, 0, 1)
    assert _counts(_classes([row] * 2, [row] * 3, key=())) == (2, 0, 1, 0)
    assert _counts(_classes([row], [("1", "b", None)], key=())) == (0, 0, 1, 1)


def test_a_key_that_the_lake_holds_twice_is_added_once() -> None:
    assert _counts(_classes([("1", "a", None)], [("1", "a", None), ("1", "old", None)])) == (1, 0, 1, 0)


def test_samples_are_bounded() -> None:
    found = _classes(ROWS, [], samples=3)
    assert (found.removed, len(found.samples)) == (50, 3)


def test_the_copies_of_a_doubled_row_are_reported() -> None:
    row: Row = ("1", "a", None)
    (sample,) = _classes([row], [row, row], key=()).samples
    assert sample.to_dict()["copies"] == {"source": 1, "lake": 2}


def test_what_memory_should_not_hold_is_spooled_apart(tmp_path: Path) -> None:
    lake = [*ROWS[2:], ("1", "other", "x\ty"), ("90", "", None)]
    whole = _classes(ROWS, lake)
    apart = _classes(ROWS, lake, expected=5_000_000, directory=tmp_path)
    assert _counts(whole) == _counts(apart) == (48, 1, 1, 1)
    assert sorted(map(str, whole.samples)) == sorted(map(str, apart.samples))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wide", ["source", "lake"])
def test_few_rows_of_many_bytes_are_spooled_apart(tmp_path: Path, wide: str) -> None:
    """All lines of a table with few but wide rows were held in memory: twice the size of the table."""

    def rows(count: int) -> Iterator[bytes]:
        yield from (line_of((str(n), f"{n}" * (100_000 // len(str(n))))) for n in range(count))

    ours, theirs = (2_000, 3) if wide == "source" else (3, 2_000)
    how: dict[str, Any] = {"columns": ("id", "v"), "key": (0,), "samples": 3, "natives": {}}
    tracemalloc.start()
    found = classify(rows(ours), rows(theirs), expected=2_003, directory=tmp_path, **how)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.identical, found.modified, found.removed + found.added) == (3, 0, 1_997)
    assert peak < 2 * row_classes._PART_BYTES < 2_000 * 100_000
    assert list(tmp_path.iterdir()) == []


TEXTS = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=30))
def test_a_line_holds_exactly_its_fields(rows: list[Row]) -> None:
    for row in rows:
        assert fields(line_of(row), {}) == row
    assert len({line_of(row) for row in rows}) == len(set(rows))


def test_figures_are_the_same_in_any_order_and_in_any_pieces() -> None:
    lines = [line_of((str(i), "x" * (i % 7), None)) for i in range(1000)]
    one, two = Sums(16), Sums(16)
    one.add(lines)
    for i in range(0, 1000, 7):
        two.add(lines[::-1][i : i + 7])
    two.add([])
    assert one.figures() == two.figures()
    assert total(one.figures()) == 1000
    alone = Sums(16)
    alone.add(lines[:1])
    # As Spark's xxhash64(KEY, line): 42 is the first seed, and each result is the next.
    seeds = (xxh64_intdigest(key.to_bytes(8, "little"), 42) for key in KEYS)
    high, low = (xxh64_intdigest(lines[0], seed) >> 4 for seed in seeds)
    assert alone.figures() == {high % 16: BucketFigures(1, high, low)}
    assert sum(len(list(chosen([lines], 16, [b]))) for b in range(16)) == 1000


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ([("1", "a", None), ("2", "b", None)], [("1", "b", None), ("2", "a", None)]),  # counts and column sums agree
        ([("1", "a", None)] * 2, [("2", "b", None)] * 2),  # XOR makes both pairs nothing
        ([("1", "a", None)] * 3, [("1", "a", None)]),  # XOR makes both the same
        ([("1", "", None)], [("1", None, "")]),
        ([("1", "ab", "c")], [("1", "a", "bc")]),
        ([("1", "\0\0\0\1c", "")], [("1", "", "c")]),
    ],
)
def test_trap_038_no_mistake_of_a_hash_hides_a_difference(was: list[Row], now: list[Row]) -> None:
    figures = []
    for rows in (was, now):
        sums = Sums(1)
        sums.add([line_of(row) for row in [*ROWS, *rows]])
        figures.append(sums.figures())
    assert differing(*figures) == (0,)


def test_small_tables_are_one_bucket() -> None:
    sums = Sums(16)
    sums.add([line_of((str(i), None, None)) for i in range(100)])
    plan, figures = effective(comparison(_table(), 16), sums.figures())
    assert (plan.buckets, list(figures)) == (1, [0])
    assert figures[0].high == sum(f.high for f in sums.figures().values())
    assert effective(comparison(_table(), 16), {})[1] == {}


def test_buckets_differ_by_any_figure() -> None:
    source = {1: BucketFigures(2, 10, 20), 2: BucketFigures(1, 5, 5), 3: BucketFigures(1, 1, 1)}
    assert differing(source, dict(source)) == ()
    assert differing(source, {1: BucketFigures(2, 10, 21), 2: BucketFigures(1, 5, 5)}) == (1, 3)


def _table(**change: object) -> TableVersion:
    columns = [
        {
            "attnum": i,
            "name": name,
            "type_oid": 25,
            "type": "text",
            "typmod": -1,
            "not_null": False,
            "type_kind": "b",
            "type_category": "S",
            "published": name != "secret",
        }
        for i, name in enumerate(("id", "secret", "name"), 1)
    ]
    data = {
        "relid": 7,
        "schema": "public",
        "name": "t",
        "kind": "r",
        "persistence": "p",
        "replica_identity": "d",
        "key_attnums": [1],
        "columns": columns,
    }
    return TableVersion.from_json(data | change)


def test_only_published_columns_are_compared() -> None:
    plan = comparison(_table(), 16)
    assert ([c.name for c in plan.columns], plan.key) == (["id", "name"], (0,))


@pytest.mark.parametrize("change", [{"replica_identity": "f"}, {"key_attnums": [2]}, {"key_attnums": []}])
def test_without_a_published_key_it_is_a_bag(change: dict[str, object]) -> None:
    plan = comparison(_table(**change), 16)
    assert plan.key == ()


OK = TableCheck("public.a", 1, CheckStatus.IDENTICAL, 3, 3, 0, 0, 0)


@pytest.mark.parametrize("status", ["different", "stale", "not_taken"])
def test_one_red_table_makes_the_report_red(status: str) -> None:
    assert CheckReport(Lsn(8), (OK,)).green
    assert not CheckReport(Lsn(8), (OK, TableCheck("public.b", 2, status))).green  # type: ignore[arg-type]


def test_nothing_compared_is_not_green() -> None:
    assert not CheckReport(Lsn(8), ()).green
    assert not CheckReport(None, (OK,)).green


@pytest.mark.parametrize("character", ["\1", "\x85", "\ufffe", "\uffff", "\N{BALLOT X}"])
def test_any_name_makes_a_file_that_is_xml(character: str) -> None:
    """No reader of JUnit files accepted one with either of two characters that a name may contain."""
    table = TableCheck(f'public."a{character}"', 1, CheckStatus.NOT_TAKEN, reason=f"locked by {character}")
    (case,) = ElementTree.fromstring(expectations._junit(CheckReport(None, (table,))))
    assert case.attrib["name"].startswith('public."a') and case[0].attrib["message"].startswith("not_taken: locked by ")


@pytest.mark.parametrize("orphans", [0, 3])
def test_the_junit_file_of_a_check_without_tables_or_with_missing_references_is_not_green(orphans: int) -> None:
    """A pipeline that reads `junit.xml` saw only tables that are identical, or no test at all."""
    tables = (OK, replace(OK, table="public.b", relid=2)) if orphans else ()
    found = (Reference(ForeignKey("a_b", 1, 2, (1,), (1,)), orphans, (("7",),)),) if orphans else ()
    report = CheckReport(Lsn(8), tables, references=found)
    suite = ElementTree.fromstring(expectations._junit(report))
    assert not report.green
    wrong = [one.attrib["message"] for kind in ("failure", "error") for one in suite.findall(f"*/{kind}")]
    assert len(wrong) == int(suite.attrib["failures"]) + int(suite.attrib["errors"]) == 1
    assert len(suite) == int(suite.attrib["tests"]) == len(tables) + 1
    assert wrong[0].startswith("foreign key a_b of public.a: 3 rows" if orphans else "no table was compared")


def test_the_reports_of_a_check_name_the_users_failed_models_and_views_that_are_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were added to the report after its files were written: `junit.xml` was green, and the exit code 1."""
    failed, config = ["before: no column x"], Config(root=tmp_path)
    lake: Any = SimpleNamespace(access=config.lake_access, ledger=None)

    def compared(*_: object, **more: Any) -> CheckReport:
        more["build"]()
        return CheckReport(Lsn(8), (OK,))

    monkeypatch.setattr(parity, "compare", compared)
    monkeypatch.setattr(expectations, "validate", lambda *_, **more: None)
    unmoved = {"published.a": "it is torn; run `cdc doctor`"}
    monkeypatch.setattr(published, "publish", lambda *_, **more: published.Published((), unmoved))
    report = parity.check(
        config.source_access, lake, config.check, drain=lambda **more: None,
        build=lambda **more: failed.extend(["mine: a: b", *failed]), threads=1, own_failed=failed,
    )  # fmt: skip
    assert report.green and report.own_failed == ("before: no column x", "mine: a: b")
    written = expectations.last_report(config.lake_access)
    assert (written["own_failed"], written["unmoved"]) == ([*report.own_failed], unmoved)
    suite = ElementTree.parse(expectations.directory(config.lake_access) / "junit.xml").getroot()
    assert (len(suite), suite.attrib["tests"], suite.attrib["failures"], suite.attrib["errors"]) == (4, "4", "3", "0")
    assert [(case.attrib["name"], case[0].attrib["message"]) for case in suite if len(case)] == [
        *unmoved.items(),
        ("before", "before: no column x"),
        ("mine", "mine: a: b"),
    ]


def test_text_and_json_say_the_same() -> None:
    report = CheckReport(
        Lsn(8), (OK, TableCheck("public.b", 2, CheckStatus.STALE, reason="gap", remedy="cdc repair public.b"))
    )
    data = json.loads(json.dumps(report.to_dict()))
    assert (data["lsn"], data["green"]) == ("0/8", False)
    assert data["tables"][1]["status"] == "stale"
    assert "NOT proven" in as_text(report)
    assert "public.b: gap (cdc repair public.b)" in as_text(report)


def test_ranges_hold_every_key_and_split_at_the_widest_gaps() -> None:
    table = _table()
    assert key_ranges_sql(comparison(table, 1), [("a",)]) == "true"  # a text
    columns = tuple(replace(column, type="bigint") for column in table.columns)
    plan = comparison(replace(table, columns=columns), 1)
    assert key_ranges_sql(plan, [("7",)]) == "`id` BETWEEN 7 AND 7"
    one = key_ranges_sql(plan, [("10",), ("-5",), ("9",)])
    assert one == "`id` BETWEEN -5 AND -5 OR `id` BETWEEN 9 AND 9 OR `id` BETWEEN 10 AND 10"
    numbers = [*range(0, 1000, 10), *range(5000, 6000, 10)]
    parts = key_ranges_sql(plan, [(str(n),) for n in numbers]).split(" OR ")
    ranges = [tuple(map(int, re.findall(r"-?\d+", part))) for part in parts]
    assert len(ranges) == 50
    assert all(any(low <= n <= high for low, high in ranges) for n in numbers)
    assert not any(low < 995 < high for low, high in ranges)


_ESCAPED = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
_ODD = st.none() | st.text(st.sampled_from("\\\\\t\n\r\b\f\vNtn,\x01é😀 "), max_size=6) | TEXTS


def _copied(row: Row) -> bytes:
    """A row as the server's COPY writes it."""
    cells = ("\\N" if cell is None else "".join(_ESCAPED.get(c, c) for c in cell) for cell in row)
    return ("\t".join(cells) + "\n").encode()


@given(st.lists(st.tuples(_ODD, _ODD, _ODD), max_size=30))
def test_copy_text_becomes_cells(rows: list[Row]) -> None:
    assert copytext.cells([_copied(row) for row in rows] or [b"x\n"]).to_pylist() == (
        [cell for row in rows for cell in row] or ["x"]
    )


def _comparing(tables: Sequence[TableVersion]) -> Any:
    comparing: Any = object.__new__(parity._Comparing)
    comparing.live = {table.relid: table for table in tables}
    comparing.taken = {}
    comparing.made = {table.relid: Applied(True, ()) for table in tables}
    config = Config()
    comparing.access, comparing.check, comparing.spark = config.lake_access, config.check, None
    return comparing


def _lost(*_: object, **__: object) -> None:
    raise LakeError("public__t-0.parquet is missing; restore it")


def test_a_foreign_key_that_cannot_be_counted_ends_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof of one of its tables may be carried although a file is lost. No table had a result then."""
    monkeypatch.setattr(references, "uncounted_reason", lambda *_: None)
    monkeypatch.setattr(references, "orphans", _lost)
    monkeypatch.setattr(scans, "require_files", lambda _, table: _lost() if table.endswith(".public__t8") else None)
    results = [TableCheck(f"public.t{n}", n, CheckStatus.IDENTICAL, proof=ProofKind.FULL) for n in (7, 8)]
    key = ForeignKey("k", 7, 8, (1,), (1,))
    tables = [replace(_table(relid=n), name=f"t{n}") for n in (7, 8)]
    found, counts = _comparing(tables).references([key], results)
    assert [t.status for t in found] == [CheckStatus.IDENTICAL, CheckStatus.NOT_TAKEN] and found[1].remedy
    assert counts == (Reference(key, reason="the count failed: public__t-0.parquet is missing; restore it"),)


@pytest.mark.parametrize(
    ("lost", "remedy"),
    [
        (_lost, "cdc build -- --full-refresh --select current__public__t history__public__t"),
        (lambda *_: 0, "cdc check"),
    ],
)
def test_a_table_that_cannot_be_read_has_a_remedy(monkeypatch: pytest.MonkeyPatch, lost: Any, remedy: str) -> None:
    monkeypatch.setattr(scans, "require_files", lost)
    found = _comparing([_table()])._failed(TableCheck("public.t", 7, CheckStatus.NOT_TAKEN), OSError("no such file"))
    assert (found.status, found.remedy) == (CheckStatus.NOT_TAKEN, remedy)
