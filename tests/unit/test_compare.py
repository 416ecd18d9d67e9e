"""The catalog comparison finds what capture missed, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolkit.capture.drift import Known, Observation, unexplained
from toolkit.rawlog.arrow import Event
from toolkit.source.guard import CaptureState
from toolkit.values.lsn import Lsn
from toolkit.values.table import SchemaVersion, TableVersion

pytestmark = pytest.mark.unit

STANDING = CaptureState("as ever", standing=True, paused=False)


def _snapshot(relid: int, **changes: Any) -> dict[str, Any]:
    column = {
        "attnum": 1, "name": "id", "type_oid": 20, "type": "bigint", "typmod": -1, "not_null": True, "type_kind": "b",
        "type_category": "N", "has_missing": False, "missing": None,
    }  # fmt: skip
    return {
        "relid": relid, "schema": "public", "name": f"t{relid}", "kind": "r", "persistence": "p",
        "replica_identity": "d", "key_attnums": [1], "primary_key": [1], "columns": [column], "published": True,
    } | changes  # fmt: skip


def _version(relid: int, xid: int | None = None, **changes: Any) -> SchemaVersion:
    payload = json.dumps(_snapshot(relid, **changes))
    table = TableVersion.from_json(json.loads(payload))
    return SchemaVersion(relid, 1, Lsn(99), Lsn(100), 0, table, payload, xid)


def _compare(seen: dict[int, dict[str, Any]], versions: dict[int, SchemaVersion]) -> list[Event]:
    observation = Observation(
        {k: json.dumps(v) for k, v in seen.items()},
        frozenset(versions),
        "700:710:705,706",
        Lsn(900),
        Lsn(990),
        STANDING,
        {},
    )
    return unexplained(
        observation,
        Known(versions, 7, 1, 50, Lsn(1000), Lsn(500), STANDING.state, {1: Lsn(600)}, frozenset()),
    )


def test_equal_catalogs_give_nothing() -> None:
    assert _compare({1: _snapshot(1)}, {1: _version(1)}) == []


def test_a_missing_value_cleared_by_a_rewrite_is_no_difference() -> None:
    seen = _snapshot(1)
    seen["columns"][0]["has_missing"] = True
    assert _compare({1: seen}, {1: _version(1)}) == []


@pytest.mark.parametrize(
    ("seen", "known", "reason"),
    [
        ({1: _snapshot(1, name="other")}, {1: _version(1)}, "name"),
        ({1: _snapshot(1), 2: _snapshot(2)}, {1: _version(1)}, "no DDL event introduced"),
        ({}, {1: _version(1)}, "left the catalog"),
    ],
)
def test_a_difference_without_an_event_is_a_gap_from_where_it_may_have_begun(
    seen: dict[int, dict[str, Any]], known: dict[int, SchemaVersion], reason: str
) -> None:
    events = _compare(seen, known)
    assert [(e.kind, e.batch_id) for e in events] == [("schema", 7), ("gap", 7)]
    assert (events[0].commit_lsn, events[0].end_lsn) == (999, 1000)
    # Table 1 was read at 600, after the last comparison at 500; table 2 was not.
    since = 600 if events[1].relid == 1 else 500
    assert (events[1].commit_lsn, events[1].end_lsn) == (since - 1, since)
    assert events[1].ordinal > 1 << 40  # behind the baseline at the same position, which does not end it
    assert events[0].schema_id == 50
    assert reason in json.loads(events[1].payload or "{}")["reason"]
    assert "cdc repair" in json.loads(events[1].payload or "{}")["remedy"]


@pytest.mark.parametrize(("xid", "found"), [(705, 0), (711, 0), (704, 2), (699, 2)])
def test_ddl_that_the_snapshot_could_not_see_is_left_to_a_later_drain(xid: int, found: int) -> None:
    assert len(_compare({1: _snapshot(1, name="other")}, {1: _version(1, xid)})) == found


def test_xids_are_compared_across_the_epoch() -> None:
    seen = Observation({}, frozenset(), f"{2**32 + 5}:{2**32 + 5}:", Lsn(900), Lsn(990), STANDING, {})
    assert seen.sees(2**32 - 10)
    assert seen.sees(2**32 + 4)
    assert not seen.sees(2**32 + 5)


def test_a_table_that_was_dropped_with_an_event_is_no_difference() -> None:
    assert _compare({}, {1: _version(1, dropped=True)}) == []


@pytest.mark.parametrize(
    ("state", "stale", "found"),
    [
        (CaptureState("as ever", standing=True, paused=False), frozenset(), 0),
        (CaptureState("altered", standing=True, paused=False), frozenset({1}), 1),
        (CaptureState("as ever", standing=False, paused=False), frozenset(), 1),
        (CaptureState("as ever", standing=False, paused=False), frozenset({1}), 0),
        (CaptureState("as ever", standing=True, paused=True), frozenset(), 1),
    ],
)
def test_capture_that_was_altered_or_is_off_makes_every_table_stale(
    state: CaptureState, stale: frozenset[int], found: int
) -> None:
    seen = Observation({1: json.dumps(_snapshot(1))}, frozenset({1}), "700:710:", Lsn(900), Lsn(990), state, {})
    known = Known({1: _version(1)}, 7, 1, 50, Lsn(1000), Lsn(500), STANDING.state, {}, stale)
    assert [event.kind for event in unexplained(seen, known)] == ["gap"] * found
