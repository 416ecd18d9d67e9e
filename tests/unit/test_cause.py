"""Where a difference arose, from the log's account of a row and the commits of its table."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.support_history import column, snapshot
from toolkit.lake.applied import Applied, Commit, Foreign, commits
from toolkit.lake.evidence import Row, RowEvent
from toolkit.lake.row_lines import Side
from toolkit.quality.cause import Account, _cause, remedy
from toolkit.quality.differing_rows import FEW
from toolkit.quality.report import Cause, Sample, TableCheck
from toolkit.values.lsn import Lsn
from toolkit.values.namespaces import Namespaces
from toolkit.values.outcome import CauseKind, CheckStatus, RowClass
from toolkit.values.row_line import Comparison, comparison
from toolkit.values.table import TableVersion
from toolkit.values.visibility import Visibility, full_xid

pytestmark = pytest.mark.unit

TABLE = snapshot("t", [column(1, "id", "bigint"), column(2, "name", "text"), column(3, "body", "text")])
KEYED = comparison(TableVersion.from_json(TABLE), 1)
BAG = comparison(TableVersion.from_json(TABLE | {"replica_identity": "f"}), 1)
BUILD = Commit(10, 3, Lsn(90), ("a_tag", "g1_lsn_5a"), False)
FOREIGN = Foreign(BUILD, (Commit(11, None, None, (), False),))


def _event(op: str, new: Row | None = None, old: Row | None = None, n: int = 1, **given: Any) -> RowEvent:
    plain: dict[str, Any] = {"batch_id": n, "xid": 700 + n, "whole": False, "unchanged": frozenset()}
    return RowEvent(op=op, end_lsn=Lsn(10 * n), new=new, old=old, **(plain | given))


def _kind(
    plan: Comparison,
    events: list[RowEvent],
    *,
    source: Row | None = None,
    lake: Row | None = None,
    copies: tuple[int, int] | None = None,
    built: list[Row] | None = None,
) -> str:
    row = source or lake or ()
    name = tuple(row[i] for i in plan.key) if plan.key else row
    kind = RowClass.MODIFIED if source and lake else RowClass.REMOVED if source else RowClass.ADDED
    sample = Sample(kind, tuple((str(i), cell) for i, cell in enumerate(name)), (), copies, source, lake)
    now = [] if lake is None else [lake]
    if copies is not None:
        now = [row] * copies[1]
    # Someone else found what the build had left, and left what is there now.
    written = [] if built is None else [(FOREIGN, Counter(built), Counter(now))]
    return _cause(Side(plan, None, Namespaces()), name, sample, Account(plan, events), written).kind


OLD: Row = ("1", "old", "b")
NEW: Row = ("1", "new", "b")


@pytest.mark.parametrize(
    ("events", "source", "lake", "wanted"),
    [
        ([_event("R", OLD), _event("U", NEW, n=2)], NEW, OLD, "build"),
        ([_event("R", OLD)], NEW, OLD, "capture"),
        ([], NEW, None, "capture"),
        ([_event("R", NEW)], NEW, None, "build"),
        ([_event("R", NEW), _event("T", n=2)], NEW, None, "capture"),
        ([_event("R", OLD), _event("D", old=("1", None, None), n=2)], None, OLD, "build"),
        ([_event("R", OLD)], None, OLD, "capture"),
        # An unchanged TOASTed value comes from the row before; where the log has lost that, a build has nothing either.
        ([_event("R", OLD), _event("U", ("1", "new", None), n=2, unchanged=frozenset([2]))], NEW, OLD, "build"),
        ([_event("U", ("1", "new", None), unchanged=frozenset([2]))], NEW, ("1", "new", None), "capture"),
        ([_event("U", NEW, ("9", None, None), unchanged=frozenset([2]))], NEW, OLD, "build"),  # under another key
        (
            [_event("U", ("1", "new", None), ("1", "old", "x"), whole=True, unchanged=frozenset([2]))],
            NEW,
            OLD,
            "capture",
        ),
        # A changed key: the row is under the new one.
        ([_event("R", ("9", "old", "b")), _event("U", NEW, ("9", None, None), n=2)], NEW, None, "build"),
    ],
)
def test_a_keyed_row(events: list[RowEvent], source: Row | None, lake: Row | None, wanted: str) -> None:
    assert _kind(KEYED, events, source=source, lake=lake) == wanted


def test_a_row_that_was_right_at_the_build_was_tampered_with() -> None:
    events = [_event("R", NEW)]
    assert _kind(KEYED, events, source=NEW, lake=OLD, built=[NEW]) == "tampered"
    assert _kind(KEYED, events, source=NEW, lake=OLD, built=[OLD]) == "build"
    assert _kind(KEYED, events, source=NEW, built=[NEW]) == "tampered"
    assert _kind(KEYED, [], lake=NEW, built=[]) == "tampered"
    assert _kind(KEYED, events, lake=NEW, copies=(1, 2), built=[NEW]) == "tampered"
    assert _kind(KEYED, events, lake=NEW, copies=(1, 2), built=[NEW, NEW]) == "build"


def test_what_repairs_a_table_is_the_rows_that_differ_or_all_of_it() -> None:
    lost = Sample(RowClass.REMOVED, (), cause=Cause(CauseKind.CAPTURE, "", "this one", None))
    built = replace(lost, cause=Cause(CauseKind.BUILD, "", "this one", None))

    def advised(plan: Comparison, *samples: Sample, rows: int = 2) -> str | None:
        return remedy(
            plan, TableCheck("public.t", 1, CheckStatus.DIFFERENT, modified=0, added=0, removed=rows, samples=samples)
        )

    assert advised(KEYED, built, lost) == "cdc repair public.t --differing"  # which builds it again as well
    assert advised(KEYED, lost, rows=FEW + 1) == advised(BAG, lost) == "cdc repair public.t"
    assert advised(KEYED, built, built) == "this one"
    assert advised(KEYED, Sample(RowClass.REMOVED, ())) is None
    sample = Sample(RowClass.REMOVED, (("id", "it's \n"), ("k", "2")), source=("it's \n", "2", "b"))
    one = _cause(Side(KEYED, None, Namespaces()), ("it's \n",), sample, Account(KEYED, []), [])
    assert shlex.split(one.remedy)[3:] == ["--rows", json.dumps({"id": "it's \n", "k": "2"})]


def test_a_bag_counts_copies() -> None:
    twice = [_event("I", OLD), _event("I", OLD, n=2)]
    assert _kind(BAG, twice, source=OLD, copies=(2, 1)) == "build"
    assert _kind(BAG, twice, source=OLD, copies=(3, 2)) == "capture"
    assert _kind(BAG, [*twice, _event("D", old=OLD, n=3)], lake=OLD, copies=(1, 2)) == "build"
    moved = [*twice, _event("U", ("1", "new", None), OLD, n=3, whole=True, unchanged=frozenset([2]))]
    assert _kind(BAG, moved, source=NEW, copies=(1, 0)) == "build"
    assert _kind(BAG, [*twice, _event("T", n=3)], source=OLD, copies=(2, 0)) == "capture"
    assert _kind(BAG, twice, source=OLD, copies=(2, 0), built=[OLD, OLD]) == "tampered"


def test_commits_are_identified_by_who_made_them() -> None:
    def made(number: int, parent: int | None, operation: str = "overwrite", **summary: str) -> dict[str, Any]:
        summary = {key.replace("_", "-"): value for key, value in summary.items()}
        summary = {f"cdc.{key}": value for key, value in summary.items()}
        return {"snapshot-id": number, "parent-snapshot-id": parent, "summary": {"operation": operation} | summary}

    metadata = {
        "current-snapshot-id": 4,
        "snapshots": [
            made(1, None, applied_batch="2", applied_lsn="80"),
            made(2, 1, applied_batch="3", applied_lsn="90"),
            made(3, 2, "replace"),
            made(4, 3),
        ],
        "refs": {"main": {"type": "branch", "snapshot-id": 4}, "g1": {"type": "tag", "snapshot-id": 2}},
    }
    found = Applied(True, tuple(commits(metadata)))
    assert [c.snapshot_id for c in found.commits] == [4, 3, 2, 1]
    assert found.build == Commit(2, 3, Lsn(90), ("g1",), False)
    assert [(f.before.snapshot_id, [c.snapshot_id for c in f.commits]) for f in found.foreign(None)] == [(3, [4])]
    assert [c.snapshot_id for c in found.since(2) or ()] == [4, 3]
    assert found.since(99) is None
    assert Applied(True, tuple(commits({"current-snapshot-id": None}))).snapshot_id is None


def test_a_compaction_does_not_hide_that_columns_were_altered() -> None:
    before, after = (((1, "id", "int"), (2, "n", "int")), ((1, "id", "int"), (3, "n", "int")))
    build = Commit(1, 7, Lsn(80), (), rewrite=False, columns=before)
    compaction = Commit(2, 7, Lsn(80), (), rewrite=True, columns=after)
    assert Applied(True, (compaction, build), after).altered
    assert not Applied(True, (build,), before[::-1]).altered
    assert not Applied(True, (compaction,), after).altered  # the build is expired
    assert not Applied(True, ()).altered


def test_whatever_another_session_wrote_since_the_proof_is_known() -> None:
    def made(number: int, batch: int | None = None, columns: tuple[tuple[int, str, str], ...] = ()) -> Commit:
        return Commit(number, batch, None, (), rewrite=False, columns=columns)

    def attributed(*commits: Commit, since: int | None = None) -> list[tuple[int, list[int]]]:
        found = Applied(True, commits).foreign(since)
        return [(f.before.snapshot_id, [c.snapshot_id for c in f.commits]) for f in found]

    proven, two, build, four, five = made(1, 1), made(2), made(3, 2), made(4), made(5)
    assert attributed(build, two, proven, since=1) == [(1, [2])]  # a build came on top
    assert attributed(five, four, build, two, proven, since=1) == [(3, [4, 5]), (1, [2])]
    assert attributed(five, four, build, two, proven, since=3) == [(3, [4, 5])]
    assert attributed(build, proven, two, since=1) == []
    assert attributed(four, two, proven, since=2) == [(2, [4])]  # what another process wrote was proven
    assert attributed(four, two) == [(2, [4])]  # it is not known what the first was written to
    assert attributed(four, build, made(2, None, ((1, "old", "int"),))) == [(3, [4])]
    assert attributed(proven) == attributed() == []


def test_a_snapshot_shows_what_had_ended() -> None:
    seen = Visibility.parse(f"{2**32 + 5}:{2**32 + 9}:{2**32 + 5},{2**32 + 7}")
    shown = {4: True, 5: False, 6: True, 7: False, 8: True, 9: False, -1: True, 2**32 - 1: False}
    assert {low: seen.sees(2**32 + low) for low in shown} == shown
    assert [full_xid(low, 2**32 - 5) for low in (2**32 - 6, 3, 2**31)] == [2**32 - 6, 2**32 + 3, 2**31]
    assert Visibility.parse("5:5:").running == frozenset()
