"""The decoder against streams recorded from real servers (`record_fixtures.py`), with real event triggers in them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit import wire
from toolkit.decode.ddl_message import Verifier
from toolkit.decode.planner import plan
from toolkit.values.spool import Spool
from toolkit.values.table import Column, TableVersion

pytestmark = pytest.mark.unit

#: Tables of the scenario with silent changes, by what must be said about them.
SILENT = {"silent": ("rewritten by ALTER TABLE", "column r: added")}


@pytest.fixture(params=[16, 18], scope="module")
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Spool, dict[str, Any]]:
    return wire.recorded(request.param, tmp_path_factory.mktemp("spool"))


def tables(events: list[dict[str, Any]], facts: dict[str, Any]) -> dict[int, dict[int, TableVersion]]:
    """Every schema version by relid and schema_id."""
    known = {r: {v.schema_id: v.table} for r, v in wire.recorded_context(facts).versions.items()}
    for event in events:
        if event["kind"] == "schema":
            version = TableVersion.from_json(json.loads(event["payload"]))
            known.setdefault(event["relid"], {})[event["schema_id"]] = version
    return known


def test_rows_equal_the_plain_decoder(recorded: tuple[Spool, dict[str, Any]]) -> None:
    spool, facts = recorded
    events = wire.decoded(plan(spool, context=wire.recorded_context(facts)))
    rows = [event for event in events if event["kind"] == "row"]
    reference = wire.plain(wire.messages_of(spool))
    assert len(rows) == len(reference) > 50
    for row, plain in zip(rows, reference, strict=True):
        assert {k: row[k] for k in ("commit_lsn", "ordinal", "lsn", "xid", "op", "relid")} == {
            k: plain[k] for k in ("commit_lsn", "ordinal", "lsn", "xid", "op", "relid")
        }
        assert row["schema_id"] is not None
        assert row["old_kind"] == next((k for k in "KO" if k in plain["images"]), None)
        for name, image in (("new", plain["images"].get("N")), ("old", plain["images"].get(row["old_kind"]))):
            if image is None:
                assert row[name] is None
                continue
            # The wire leaves out dropped and unpublished columns; by attnum they are NULL.
            texts = [cell for cell in image if isinstance(cell, str)]
            assert [cell for cell in row[name] if cell is not None] == texts
        assert len(row["unchanged"]) == sum(cell is wire.UNCHANGED for cell in plain["images"].get("N", ()))


def test_folding_the_events_gives_what_select_shows(recorded: tuple[Spool, dict[str, Any]]) -> None:
    spool, facts = recorded
    events = wire.decoded(plan(spool, context=wire.recorded_context(facts)))
    known = tables(events, facts)
    state: dict[int, Counter[tuple[str | None, ...]]] = {}
    for event in events:
        relid = event["relid"]
        if event["kind"] == "truncate":
            state[relid] = Counter()
        if event["kind"] == "row":
            fold(state.setdefault(relid, Counter()), event, known[relid][event["schema_id"]])
    compared = 0
    for relid, snapshot in facts["after"].items():
        if snapshot["name"] in SILENT:
            continue
        last = known[int(relid)][max(known[int(relid)])]
        assert [c.attnum for c in last.columns] == [c["attnum"] for c in snapshot["columns"]]
        mine = Counter(
            tuple(cell(image, column) for column in last.columns if column.published)
            for image in state.get(int(relid), Counter()).elements()
        )
        wanted = [c["attnum"] for c in snapshot["columns"] if c["published"]]
        assert mine == Counter(tuple(row[str(a)] for a in wanted) for row in facts["rows"][relid]), snapshot["name"]
        compared += len(facts["rows"][relid])
    assert compared > 25


def cell(image: tuple[str | None, ...], column: Column) -> str | None:
    if column.attnum > len(image):
        return column.missing if column.has_missing else None
    now = dict(column.labels)
    former = {label: now[oid] for oid, label in column.former_labels}
    value = image[column.attnum - 1]
    return former.get(value, value) if value is not None else None


def fold(rows: Counter[tuple[str | None, ...]], event: dict[str, Any], table: TableVersion) -> None:
    """Apply one change to a bag of images; an old row is found by its key, or by the whole image."""
    old = event["old"] or (event["new"] if event["op"] == "U" else None)
    before: tuple[str | None, ...] = ()
    if old is not None:
        attnums = table.key_attnums if event["old_kind"] != "O" else [c.attnum for c in table.columns if c.published]

        def same(image: tuple[str | None, ...]) -> bool:
            return all(old[a - 1] == (image[a - 1] if a <= len(image) else None) for a in attnums)

        before = next(image for image in rows if rows[image] and same(image))
        rows[before] -= 1
    if event["new"] is not None:
        new = list(event["new"])
        for attnum in event["unchanged"]:
            new[attnum - 1] = before[attnum - 1]
        rows[tuple(new)] += 1


def test_only_silent_changes_make_gaps(recorded: tuple[Spool, dict[str, Any]]) -> None:
    spool, facts = recorded
    events = wire.decoded(plan(spool, context=wire.recorded_context(facts)))
    names = {int(relid): t["name"] for relid, t in {**facts["before"], **facts["after"]}.items()}
    found: dict[str, str] = {}
    for event in events:
        if event["kind"] == "gap":
            name = names[event["relid"]]
            found[name] = found.get(name, "") + json.loads(event["payload"])["reason"] + "; "
    assert set(found) == set(SILENT)
    for name, reasons in SILENT.items():
        assert all(reason in found[name] for reason in reasons), found[name]


def test_tables_born_in_the_log_have_a_baseline_before_their_rows(recorded: tuple[Spool, dict[str, Any]]) -> None:
    spool, facts = recorded
    events = wire.decoded(plan(spool, context=wire.recorded_context(facts)))
    known = tables(events, facts)
    born = {e["relid"]: e for e in events if e["kind"] == "baseline"}
    names = {max(known[relid].items())[1].name for relid in born}
    assert names == {"born", "born_busy", "selected", "doomed"}
    for relid, baseline in born.items():
        assert baseline["ordinal"] == -1
        rows = [e for e in events if e["relid"] == relid and e["kind"] == "row"]
        assert all((baseline["commit_lsn"], -1) < (row["commit_lsn"], row["ordinal"]) for row in rows)
    doomed = next(v for v in known.values() if max(v.items())[1].name == "doomed")
    assert [table.dropped for _, table in sorted(doomed.items())] == [False, True]


def test_ids_are_unique_and_ordinals_dense(recorded: tuple[Spool, dict[str, Any]]) -> None:
    spool, facts = recorded
    events = wire.decoded(plan(spool, context=wire.recorded_context(facts)))
    ids = [(e["commit_lsn"], e["ordinal"], e["kind"], e["relid"]) for e in events]
    assert len(ids) == len(set(ids))
    numbered: dict[int, set[int]] = {}
    for event in events:
        if event["kind"] in ("row", "truncate", "ddl", "message"):
            numbered.setdefault(event["commit_lsn"], set()).add(event["ordinal"])
    assert all(sorted(found) == list(range(len(found))) for found in numbered.values())


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch_changes=st.integers(1, 60), tasks=st.integers(1, 7))
def test_any_split_gives_the_same_events(
    recorded: tuple[Spool, dict[str, Any]], batch_changes: int, tasks: int
) -> None:
    spool, facts = recorded
    whole = plan(spool, context=wire.recorded_context(facts))
    parts = plan(spool, context=wire.recorded_context(facts, batch_changes))
    assert wire.decoded(parts, tasks) == wire.decoded(whole)
    assert [b.batch_id for b in parts.batches] == list(range(1, len(parts.batches) + 1))
    assert [b.first_msg for b in parts.batches[1:]] == [b.stop_msg for b in parts.batches[:-1]]
    assert parts.batches[-1].complete_to == whole.batches[-1].complete_to == spool.upto_lsn
    assert sum(b.changes for b in parts.batches) == whole.batches[0].changes
    assert parts.batches[-1].versions == whole.batches[-1].versions


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_drain_cut_anywhere_continues_with_the_same_events(
    recorded: tuple[Spool, dict[str, Any]], data: st.DataObject, tmp_path: Path
) -> None:
    """Two peeks instead of one: the second connection is sent every RELATION again, and its ledger is the first's."""
    spool, facts = recorded
    messages = wire.messages_of(spool)
    ends = [i + 1 for i, (_, _, m) in enumerate(messages) if m[:1] == b"C"]
    cut = data.draw(st.sampled_from(ends[:-1]))
    first = plan(wire.spool(tmp_path / "a", messages[:cut], complete=False), context=wire.recorded_context(facts))
    sent = {m[1:5]: (lsn, xid, m) for lsn, xid, m in messages[:cut] if m[:1] == b"R"}
    seen: set[bytes] = set()
    rest = []
    for lsn, xid, message in messages[cut:]:
        if message[:1] == b"R":
            seen.add(message[1:5])
        if message[:1] in (b"I", b"U", b"D") and message[1:5] not in seen:
            seen.add(message[1:5])
            rest.append((lsn, xid, sent[message[1:5]][2]))
        rest.append((lsn, xid, message))
    last = first.batches[-1]
    given_ = wire.context(
        signed=wire.by_key(bytes.fromhex(facts["key"])), system_id=facts["system_id"], versions=last.versions,
        next_schema_id=last.next_schema_id, batch_id=last.batch_id + 1,
    )  # fmt: skip
    second = plan(wire.spool(tmp_path / "b", rest), context=given_)
    whole = wire.decoded(plan(spool, context=wire.recorded_context(facts)))
    truncates = [e for e in whole if e["kind"] == "truncate"]
    assert truncates
    assert wire.decoded(first) + wire.decoded(second) == whole


def test_a_hash_in_place_of_a_message_is_refused_without_a_question() -> None:
    """Any role can write messages with the toolkit's prefix. The source was asked again about the hash of each."""
    asked: list[bytes] = []

    def signed(signature: bytes, _: bytes) -> bool:
        asked.append(signature)
        return True

    with pytest.raises(ValueError, match="signature does not verify"):
        Verifier(signed, "1", 1).open(bytes(32))
    assert asked == []
