"""The vectorised row decoder against the plain one, and against bytes that are wrong."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit import wire
from toolkit.decode import rows, stream
from toolkit.decode.planner import plan
from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.values.errors import DecodeError

pytestmark = pytest.mark.unit

#: attnum 2 was dropped, 4 is not published, 6 is generated.
TABLE = wire.table(
    50,
    [wire.column(1, "id"), wire.column(3, "a"), wire.column(4, "hidden", published=False), wire.column(5, "b"),
     wire.column(6, "g", generated="s", published=False)],
)  # fmt: skip
RELATION = wire.relation(50, [("id", 25), ("a", 25), ("b", 25)])
OTHER = wire.table(60, [wire.column(1, "x")], name="o")
OTHER_RELATION = wire.relation(60, [("x", 25)], "o")

_text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12)
_cell = st.one_of(st.none(), _text)
_new = st.tuples(_text, st.one_of(_cell, st.just(wire.UNCHANGED)), st.one_of(_cell, st.just(wire.UNCHANGED)))
_change = st.one_of(
    st.builds(lambda n: wire.insert(50, n), st.tuples(_text, _cell, _cell)),
    st.builds(lambda n: wire.update(50, n), _new),
    st.builds(lambda n, k: wire.update(50, n, (k, None, None)), _new, _text),
    st.builds(lambda n, o: wire.update(50, n, o, b"O"), _new, st.tuples(_text, _cell, _cell)),
    st.builds(lambda k: wire.delete(50, (k, None, None)), _text),
    st.builds(lambda o: wire.delete(50, o, b"O"), st.tuples(_text, _cell, _cell)),
    st.builds(lambda n: wire.insert(60, (n,)), _cell),
)


def by_attnum(image: list[Any] | None, attnums: tuple[int, ...], width: int) -> list[str | None] | None:
    if image is None:
        return None
    found: list[str | None] = [None] * width
    for attnum, cell in zip(attnums, image, strict=True):
        found[attnum - 1] = None if cell is wire.UNCHANGED else cell
    return found


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.lists(_change, max_size=6), min_size=1, max_size=6),
    chunk=st.integers(1, 5),
    tasks=st.integers(1, 4),
)
def test_equals_the_plain_decoder(changes: list[list[bytes]], chunk: int, tasks: int, tmp_path: Path) -> None:
    messages = []
    for number, body in enumerate(changes, 1):
        extra = [RELATION, OTHER_RELATION] if number == 1 else []
        messages += wire.transaction(number, *extra, *body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "CHUNK_MESSAGES", chunk)
        made = plan(wire.spool(tmp_path / "s", messages), context=wire.context(TABLE, OTHER))
        events = wire.decoded(made, tasks)
    reference = wire.plain(messages)
    assert len(events) == len(reference)
    for event, plain in zip(events, reference, strict=True):
        attnums, width = ((1, 3, 5), 6) if plain["relid"] == 50 else ((1,), 1)
        images = plain["images"]
        new, old = images.get("N"), images.get("K", images.get("O"))
        assert event["new"] == by_attnum(new, attnums, width)
        assert event["old"] == by_attnum(old, attnums, width)
        assert event["unchanged"] == [a for a, c in zip(attnums, new or (), strict=False) if c is wire.UNCHANGED]
        assert event["absent"] == ([4, 6] if plain["relid"] == 50 else [])
        same = ("op", "lsn", "ordinal", "xid", "commit_lsn", "end_lsn", "committed_at")
        assert {key: event[key] for key in same} == {key: plain[key] for key in same}


def test_batches_have_the_schema_and_order_of_the_log(tmp_path: Path) -> None:
    messages = wire.transaction(
        1, OTHER_RELATION, RELATION, wire.insert(60, ("1",)), wire.insert(50, ("1", None, "")), wire.insert(60, ("2",))
    )
    (batch,) = plan(wire.spool(tmp_path / "s", messages), context=wire.context(TABLE, OTHER)).batches
    (task,) = batch.tasks(1)
    task = copy.deepcopy(task)  # as a worker gets it
    parts = list(rows.decode_rows(task.path, task))
    assert all(part.schema.equals(EVENT_SCHEMA) for part in parts)
    found = [row for part in parts for row in part.to_pylist()]
    assert [(r["relid"], r["ordinal"]) for r in found] == [(50, 1), (60, 0), (60, 2)]
    assert found[0]["new"] == ["1", None, None, None, "", None]
    assert (found[0]["origin"], found[0]["kind"], found[0]["end_lsn"]) == ("slot", "row", 19_100)
    assert found[0]["committed_at"].isoformat() == "2000-01-01T00:00:19+00:00"


@pytest.mark.parametrize("size", [0, 1, 3, 5_000])
def test_null_empty_and_long_values(size: int, tmp_path: Path) -> None:
    value = "ü" * size
    messages = wire.transaction(1, OTHER_RELATION, *[wire.insert(60, (value if i % 2 else None,)) for i in range(9)])
    found = wire.events(tmp_path / "s", messages, wire.context(OTHER))
    assert [event["new"] for event in found] == [[value if i % 2 else None] for i in range(9)]


def test_a_table_without_columns(tmp_path: Path) -> None:
    bare = wire.table(70, [], key_attnums=[], primary_key=[])
    messages = wire.transaction(1, wire.relation(70, []), wire.insert(70, ()), wire.insert(70, ()))
    assert [e["new"] for e in wire.events(tmp_path / "s", messages, wire.context(bare))] == [[], []]


def test_chunks_are_bounded_by_bytes_and_span(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = np.arange(0, 1100, 100, dtype=np.int64)
    everything = np.arange(10)
    monkeypatch.setattr(rows, "CHUNK_BYTES", 250)
    assert [c.tolist() for c in rows._chunks(offsets, everything)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    monkeypatch.setattr(rows, "CHUNK_BYTES", 10)
    assert [len(c) for c in rows._chunks(offsets, everything)] == [1] * 10
    monkeypatch.setattr(rows, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(rows, "CHUNK_SPAN", 450)
    assert [c.tolist() for c in rows._chunks(offsets, everything)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_chunk_looks_at_its_own_part_of_a_large_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each went over the whole map in parts: 5 M rows of one transaction took 60 us each, 1 M of them 3."""
    monkeypatch.setattr(stream, "_SPAN", 10_000)
    monkeypatch.setattr(rows, "CHUNK_MESSAGES", 100)
    let_go: list[int] = []
    monkeypatch.setattr(stream, "release", lambda data: let_go.append(1))
    needed = []
    for count in (1000, 4000):
        inserts = [wire.insert(60, ("x" * 20,)) for _ in range(count)]
        made = plan(
            wire.spool(tmp_path / "s", wire.transaction(1, OTHER_RELATION, *inserts)), context=wire.context(OTHER)
        )
        (task,) = made.batches[0].tasks(1)
        let_go.clear()
        assert sum(part.num_rows for part in rows.decode_rows(task.path, task)) == count
        needed.append(len(let_go))
    assert 0 < needed[1] < 5 * needed[0]


def test_a_large_transaction_is_shared_by_all_tasks(tmp_path: Path) -> None:
    messages = wire.transaction(1, OTHER_RELATION, *[wire.insert(60, (str(i),)) for i in range(1000)])
    (batch,) = plan(wire.spool(tmp_path / "s", messages), context=wire.context(OTHER)).batches
    tasks = batch.tasks(4)
    assert sum(len(t.run.offsets) - 1 for t in tasks) == len(messages), "a task knows its own part alone"
    found = [[r for p in rows.decode_rows(t.path, t) for r in p.to_pylist()] for t in tasks]
    assert all(200 < len(part) < 300 for part in found)
    assert [r["ordinal"] for part in found for r in part] == list(range(1000))
    assert {(r["commit_lsn"], r["end_lsn"], r["xid"]) for part in found for r in part} == {(19_000, 19_100, 701)}


def test_text_that_is_not_utf8_names_place_and_table(tmp_path: Path) -> None:
    messages = wire.transaction(1, RELATION, wire.insert(50, ("1", "x", "y")), wire.insert(50, ("2", b"a\xff", "z")))
    with pytest.raises(DecodeError, match=r"relation 50 at 0/272E: column 3 is not UTF-8"):
        wire.events(tmp_path / "s", messages, wire.context(TABLE))


@pytest.mark.parametrize(
    "message",
    [
        wire.insert(50, ("1", "2")),  # too few columns
        wire.insert(50, ("1", "2", "3", "4")),
        wire.insert(50, ("1", "2", "3"))[:-1],
        wire.insert(50, ("1", "2", "3")) + b"x",
        wire.insert(50, ("1", "2", "3"))[:8],
        wire.insert(50, ("1", "2", "3"))[:6],
        wire.insert(50, ("1", "2", "3"))[:5],
        wire.insert(50, ("1", "2", "3")).replace(b"N", b"K", 1),
        wire.delete(50, ("1", "2", "3")).replace(b"K", b"N", 1),
        wire.insert(50, ("1", "2", "3")).replace(b"t\0\0\0\x01", b"b\0\0\0\x01", 1),  # binary was not asked for
        wire.insert(50, ("1", "2", "3")).replace(b"t\0\0\0\x01", b"t\xff\xff\xff\xff", 1),
        wire.insert(50, ("1", "2", "3")).replace(b"t\0\0\0\x01", b"t\x7f\xff\xff\xff", 1),
        wire.update(50, ("1", "2", "3"), ("1", None, None))[:-20],
        wire.delete(50, (wire.UNCHANGED, None, None)),
    ],
)
def test_malformed_tuples_are_refused(message: bytes, tmp_path: Path) -> None:
    messages = wire.transaction(1, RELATION, wire.insert(50, ("1", None, None)), message)
    with pytest.raises(DecodeError, match="relation 50"):
        wire.events(tmp_path / "s", messages, wire.context(TABLE))


def test_a_row_needs_a_relation(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match=r"row of relation 50 at .* before its RELATION"):
        wire.events(tmp_path / "s", wire.transaction(1, wire.insert(50, ("1", "2", "3"))), wire.context(TABLE))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_ends_in_anything_but_a_refusal(data: st.DataObject, tmp_path: Path) -> None:
    """A flipped byte is either refused or changes what comes out; nothing crashes and nothing is lost silently."""
    good = wire.transaction(
        1, RELATION, wire.insert(50, ("1", "two", None)),
        wire.update(50, ("1", wire.UNCHANGED, "3"), ("0", None, None)),
        wire.truncate(50), wire.logical("app", b"x"), wire.delete(50, ("1", None, None)),
    )  # fmt: skip
    index = data.draw(st.integers(0, len(good) - 1))
    lsn, xid, message = good[index]
    at = data.draw(st.integers(0, len(message) - 1))
    flipped = message[:at] + bytes([message[at] ^ data.draw(st.integers(1, 255))]) + message[at + 1 :]
    bad = [*good[:index], (lsn, xid, flipped), *good[index + 1 :]]
    try:
        events = wire.events(tmp_path / "s", bad, wire.context(TABLE))
    except DecodeError:
        return
    if message[:1] in b"IUD":
        assert events != wire.events(tmp_path / "t", good, wire.context(TABLE))
