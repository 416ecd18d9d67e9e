"""The plan: transactions, schema versions, forged and unexplained DDL, and damaged streams."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit import wire
from toolkit.decode import ddl
from toolkit.decode.messages import Begin, Commit, Origin, Relation, TypeName, parse
from toolkit.decode.planner import plan
from toolkit.values.errors import DecodeError
from toolkit.values.table import TableVersion

pytestmark = pytest.mark.unit

TWO = wire.table(50, [wire.column(1, "id"), wire.column(2, "a")])
TWO_RELATION = wire.relation(50, [("id", 25), ("a", 25)])
THREE = wire.table(50, [wire.column(1, "id"), wire.column(2, "a"), wire.column(3, "b")])
THREE_RELATION = wire.relation(50, [("id", 25), ("a", 25), ("b", 25)])


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["kind"] for event in events]


def reasons(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["relid"]: json.loads(e["payload"])["reason"] for e in events if e["kind"] == "gap"}


# -- messages


def test_every_sparse_message_is_read() -> None:
    assert parse(wire.begin(9000, 701), 0) == Begin(9000, parse(wire.begin(9000, 701), 0).committed_at, 701)  # type: ignore[union-attr,arg-type]
    assert isinstance(parse(wire.commit(9000, 9100), 0), Commit)
    relation = parse(b"R\0\0\0\x32\0t\0f\0\x01\x01id\0\0\0\0\x17\xff\xff\xff\xff", 0)
    assert isinstance(relation, Relation)
    assert (relation.schema, relation.replica_identity) == ("pg_catalog", "f")
    assert (relation.columns[0].key, relation.columns[0].typmod, relation.columns[0].type_oid) == (True, -1, 23)
    assert parse(b"Y\0\0\x40\x00public\0mood\0", 0) == TypeName(0x4000, "public", "mood")
    assert parse(b"O\0\0\0\0\0\0\0\x07node\0", 0) == Origin(7, "node")  # type: ignore[arg-type]


@pytest.mark.parametrize("message", [wire.begin(1, 2) + b"x", b"R\0\0", b"Y\0\0\0\0name", wire.truncate(1, 2)[:-1]])
def test_malformed_sparse_messages_are_refused(message: bytes) -> None:
    with pytest.raises(DecodeError, match="message 7"):
        parse(message, 7)


# -- the stream


def test_an_unknown_type_byte_is_named(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match=r"message 1 .*found 0x53"):
        wire.events(tmp_path / "s", wire.transaction(1, b"S\0\0"), wire.context())


GOOD = [
    *wire.transaction(1, TWO_RELATION, wire.insert(50, ("1", "x"))),
    *wire.transaction(2, wire.insert(50, ("2", "y"))),
]


@pytest.mark.parametrize("dropped", [0, 3, 4, 6])
def test_a_lost_begin_or_commit_is_found(dropped: int, tmp_path: Path) -> None:
    with pytest.raises(DecodeError):
        wire.events(tmp_path / "s", [m for i, m in enumerate(GOOD) if i != dropped], wire.context(TWO))


def test_a_lost_commit_and_begin_together_are_found(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match=r"COMMIT at|belongs to transaction"):
        wire.events(tmp_path / "s", [m for i, m in enumerate(GOOD) if i not in (3, 4)], wire.context(TWO))


def test_transactions_out_of_commit_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="commit order"):
        wire.events(tmp_path / "s", [*GOOD[:4], *GOOD[:4]], wire.context(TWO))


def test_rows_of_another_transaction_are_refused(tmp_path: Path) -> None:
    lsn, _, data = GOOD[2]
    with pytest.raises(DecodeError, match="message 2 belongs to transaction 999"):
        wire.events(tmp_path / "s", [*GOOD[:2], (lsn, 999, data), *GOOD[3:]], wire.context(TWO))


def test_a_commit_must_be_the_one_its_begin_announced(tmp_path: Path) -> None:
    lsn, xid, _ = GOOD[3]
    with pytest.raises(DecodeError, match="announced"):
        wire.events(tmp_path / "s", [*GOOD[:3], (lsn, xid, wire.commit(19_001, 19_100)), *GOOD[4:]], wire.context(TWO))


def test_a_commit_must_end_behind_its_beginning(tmp_path: Path) -> None:
    lsn, xid, _ = GOOD[3]
    with pytest.raises(DecodeError, match="ends before it starts"):
        wire.events(tmp_path / "s", [*GOOD[:3], (lsn, xid, wire.commit(19_000, 19_000)), *GOOD[4:]], wire.context(TWO))


def test_a_transaction_inside_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="B does not match the transaction before it"):
        wire.events(tmp_path / "s", [GOOD[0], *GOOD[4:6], GOOD[3], GOOD[6]], wire.context(TWO))


def test_a_change_outside_any_transaction_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="I is outside any transaction"):
        wire.events(tmp_path / "s", [*GOOD, GOOD[5]], wire.context(TWO))


def test_an_empty_spool_is_one_empty_batch_that_moves(tmp_path: Path) -> None:
    (batch,) = plan(wire.spool(tmp_path / "s", []), context=wire.context()).batches
    assert (batch.changes, batch.complete_to, batch.events, batch.tasks(2)) == (0, 10**9, (), [])
    assert plan(wire.spool(tmp_path / "s", [], complete=False), context=wire.context()).batches == ()


def test_a_spool_cut_by_count_is_complete_to_its_last_transaction(tmp_path: Path) -> None:
    made = plan(wire.spool(tmp_path / "s", GOOD, complete=False), context=wire.context(TWO, batch_changes=4))
    assert [(b.batch_id, b.first_msg, b.stop_msg, b.complete_to) for b in made.batches] == [
        (1, 0, 4, 19_100),
        (2, 4, 7, 29_100),
    ]


def test_ordinals_count_changes_before_any_filter(tmp_path: Path) -> None:
    messages = wire.transaction(
        1, TWO_RELATION, wire.insert(50, ("1", "x")), wire.logical("app", b"m"), wire.truncate(50, 51, options=3),
        wire.logical("cdc.ddl", b"forged"), TWO_RELATION, wire.insert(50, ("2", "y")),
    )  # fmt: skip
    outside = (5, 0, wire.logical("app", b"now", transactional=False))
    made = plan(wire.spool(tmp_path / "s", [outside, *messages]), context=wire.context(TWO))
    events = wire.decoded(made)
    assert [(e["kind"], e["ordinal"]) for e in events] == [
        ("row", 0), ("message", 1), ("truncate", 2), ("truncate", 3), ("message", 4), ("row", 5),
    ]  # fmt: skip
    assert [e["relid"] for e in events if e["kind"] == "truncate"] == [50, 51]
    assert made.batches[0].skipped == 1
    assert made.batches[0].changes == 4
    assert made.batches[0].counts == {"row": 2, "message": 2, "truncate": 2}


# -- messages of the log


def test_only_genuine_ddl_messages_change_versions(tmp_path: Path) -> None:
    genuine = wire.signed(701, tables=[THREE])
    forged = {
        "does not verify": wire.signed(701, key=b"wrong", tables=[THREE]),
        "another system": wire.signed(701, system="1", tables=[THREE]),
        "another transaction": wire.signed(702, tables=[THREE]),
    }
    for reason, message in forged.items():
        made = plan(wire.spool(tmp_path / "s", wire.transaction(1, message)), context=wire.context(TWO))
        (event,) = made.batches[0].events
        assert event.kind == "message" and reason in json.loads(event.payload or "")["reason"]
        assert made.batches[0].versions == wire.context(TWO).versions
    replay = wire.transaction(1, genuine, wire.signed(701, tables=[TWO]), genuine)
    events = wire.events(tmp_path / "s", replay, wire.context(TWO))
    assert kinds(events) == ["ddl", "schema", "ddl", "schema", "message"]
    assert "repeated" in json.loads(events[-1]["payload"])["reason"]


def test_a_non_transactional_ddl_message_is_no_ddl(tmp_path: Path) -> None:
    content = parse(wire.signed(701, tables=[THREE]), 0).content  # type: ignore[union-attr]
    outside = (5, 0, wire.logical("cdc.ddl", content, transactional=False))
    assert wire.events(tmp_path / "s", [outside, *wire.transaction(1)], wire.context(TWO)) == []


@pytest.mark.parametrize(
    "fields",
    [  # the last three were found by `make soak`
        {"tables": [{"relid": 50}]}, {"sql": 7}, {"tables": [TWO | {"relid": 1 << 70}]},
        {"tables": [TWO | {"columns": [wire.column(1 << 30, "a")]}]},
    ],
)  # fmt: skip
def test_an_unreadable_genuine_message_turns_everything_stale(tmp_path: Path, fields: dict[str, Any]) -> None:
    messages = wire.transaction(1, wire.signed(701, **fields))
    events = wire.events(tmp_path / "s", messages, wire.context(TWO))
    assert kinds(events) == ["gap", "message"]
    assert reasons(events) == {50: "DDL message cannot be read"}


def test_the_xid_of_a_ddl_message_is_64_bit(tmp_path: Path) -> None:
    """Of every row too; a message of an earlier epoch whose low 32 bits are the same is a replay."""
    wide, before = (3 << 32) + 701, (2 << 32) + 701
    signed = [wire.signed(xid, tables=[TWO]) for xid in (wide, before)]
    messages = wire.transaction(1, TWO_RELATION, *signed, wire.insert(50, ("1", "x")))
    messages += wire.transaction(2, wire.insert(50, ("2", "y")))
    for near in (wide - 2000, wide + (1 << 31)):
        events = wire.events(tmp_path / "s", messages, wire.context(TWO, near_xid=near))
        assert [(e["kind"], e["xid"]) for e in events] == [
            ("ddl", wide), ("message", wide), ("row", wide), ("row", wide + 1)
        ]  # fmt: skip


def test_beacons_are_found(tmp_path: Path) -> None:
    beacon = wire.signed(701, prefix="cdc.beacon", nonce="abc")
    forged = wire.signed(701, prefix="cdc.beacon", nonce="xyz", key=b"wrong")
    made = plan(wire.spool(tmp_path / "s", wire.transaction(1, beacon, forged)), context=wire.context())
    assert made.batches[0].beacons == ("abc",)
    assert kinds(wire.decoded(made)) == ["message", "message"]


def test_foreign_messages_are_counted_and_hashed(tmp_path: Path) -> None:
    messages = wire.transaction(1, wire.logical("app", "grüße".encode()), wire.logical("app", b"\xff\0"))
    (found,) = [json.loads(e["payload"]) for e in wire.events(tmp_path / "s", messages, wire.context())]
    assert found == {"prefix": "app", "count": 2, "sha256": hashlib.sha256("grüße".encode() + b"\xff\0").hexdigest()}


# -- schema versions and layouts


def test_a_ddl_event_and_its_relation_switch_the_layout(tmp_path: Path) -> None:
    messages = wire.transaction(
        1, TWO_RELATION, wire.insert(50, ("1", "x")), wire.signed(701, tables=[THREE]), THREE_RELATION,
        wire.insert(50, ("2", "y", "z")),
    )  # fmt: skip
    events = wire.events(tmp_path / "s", messages, wire.context(TWO))
    assert kinds(events) == ["row", "ddl", "schema", "row"]
    assert [e["schema_id"] for e in events if e["kind"] == "row"] == [1, 2]
    assert events[2]["ordinal"] == events[1]["ordinal"] == 1


def test_swapped_names_are_resolved_by_attnum(tmp_path: Path) -> None:
    swapped = wire.table(50, [wire.column(1, "a"), wire.column(2, "id")])
    messages = wire.transaction(
        1, wire.signed(701, tables=[swapped]), wire.relation(50, [("a", 25), ("id", 25)]), wire.insert(50, ("a", "i"))
    )
    assert wire.events(tmp_path / "s", messages, wire.context(TWO))[-1]["new"] == ["a", "i"]


def test_an_alter_without_relation_keeps_the_layout_and_takes_the_new_version(tmp_path: Path) -> None:
    commented = {**TWO, "comment": "new"}
    messages = wire.transaction(
        1, TWO_RELATION, wire.insert(50, ("1", "x")), wire.signed(701, tables=[commented]), wire.insert(50, ("2", "y"))
    )
    rows = [e for e in wire.events(tmp_path / "s", messages, wire.context(TWO)) if e["kind"] == "row"]
    assert [(r["schema_id"], r["new"]) for r in rows] == [(1, ["1", "x"]), (2, ["2", "y"])]


@pytest.mark.parametrize("columns", [None, [("id", 25), ("a", 23)], [("id", 25)], [("a", 25), ("id", 25)]])
def test_a_relation_that_does_not_fit_is_quarantined(columns: list[tuple[str, int]] | None, tmp_path: Path) -> None:
    """In the last one, two columns have each other's name: servers send columns by attnum."""
    relation = wire.relation(50, columns) if columns else THREE_RELATION
    count = int.from_bytes(relation[15:17], "big")
    messages = wire.transaction(1, relation, wire.insert(50, ["v"] * count))
    events = wire.events(tmp_path / "s", messages, wire.context(TWO))
    assert kinds(events) == ["gap", "row"]
    assert (events[1]["schema_id"], events[1]["new"]) == (None, ["v"] * count)


def test_rows_of_changed_columns_without_relation_are_quarantined(tmp_path: Path) -> None:
    renamed = wire.table(50, [wire.column(1, "id"), wire.column(2, "other")])
    messages = wire.transaction(1, TWO_RELATION, wire.signed(701, tables=[renamed]), wire.insert(50, ("1", "x")))
    events = wire.events(tmp_path / "s", messages, wire.context(TWO))
    assert "without a new RELATION" in reasons(events)[50]
    assert events[-1]["schema_id"] is None


def test_create_table_as_is_resolved_by_the_message_after_its_rows(tmp_path: Path) -> None:
    created = wire.signed(701, tables=[TWO], created=[50], tag="CREATE TABLE AS")
    messages = wire.transaction(1, TWO_RELATION, wire.insert(50, ("1", "x")), created)
    events = wire.events(tmp_path / "s", messages, wire.context())
    assert [(e["kind"], e["ordinal"]) for e in events] == [("baseline", -1), ("schema", -1), ("row", 0), ("ddl", 1)]
    assert {e["schema_id"] for e in events[:3]} == {1}


def test_a_table_that_joins_without_birth_is_stale(tmp_path: Path) -> None:
    events = wire.events(tmp_path / "s", wire.transaction(1, wire.signed(701, tables=[TWO])), wire.context())
    assert reasons(events) == {50: "joined the publication"}


def test_a_drop_is_a_version(tmp_path: Path) -> None:
    drops = [wire.signed(701, event="sql_drop", dropped=dropped) for dropped in ([50], [50, 9])]
    made = plan(wire.spool(tmp_path / "s", wire.transaction(1, *drops)), context=wire.context(TWO))
    assert kinds(wire.decoded(made)) == ["ddl", "schema", "ddl"]
    assert made.batches[0].versions[50].table.dropped


def test_missing_values_survive_a_rewrite(tmp_path: Path) -> None:
    fast = wire.table(50, [wire.column(1, "id"), wire.column(2, "a", has_missing=True, missing="7")])
    cleared = {**TWO, "comment": "new"}
    messages = wire.transaction(1, wire.signed(701, tables=[cleared]))
    made = plan(wire.spool(tmp_path / "s", messages), context=wire.context(fast))
    kept = made.batches[0].versions[50].table.column("a")
    assert kept is not None and (kept.has_missing, kept.missing) == (True, "7")


@pytest.mark.parametrize(
    ("objects", "touched", "stale"),
    [
        ([], None, {50, 60}),
        ([{"type": "table", "identity": "t", "relid": 50, "subid": 0}], None, {50}),
        ([{"type": "index", "identity": "i", "relid": 99, "subid": 0}], None, {50, 60}),
        ([{"type": "type", "identity": "mood", "relid": None, "subid": 0}], [60], {60}),
        ([{"type": "type", "identity": "mood", "relid": None, "subid": 0}], [], {50, 60}),
    ],
)
def test_failed_capture_makes_stale_what_it_may_have_touched(
    objects: list[Any], touched: list[int] | None, stale: set[int], tmp_path: Path
) -> None:
    failed = wire.signed(701, event="capture_failed", error="boom", objects=objects, touched=touched)
    messages = wire.transaction(1, failed)
    other = wire.table(60, [wire.column(1, "x")])
    assert set(reasons(wire.events(tmp_path / "s", messages, wire.context(TWO, other)))) == stale


# -- silent changes


def column_type(type_oid: int, type_: str, **more: Any) -> dict[str, Any]:
    return wire.table(50, [wire.column(1, "id"), wire.column(2, "a", type_oid, type_, **more)])


INT, BIG, NUMERIC = column_type(23, "integer"), column_type(20, "bigint"), column_type(1700, "numeric")
ALTER = "ALTER TABLE t ALTER a TYPE x"
V10 = column_type(1043, "character varying(10)", typmod=14)
V20 = column_type(1043, "character varying(20)", typmod=24)
N10, N12 = column_type(1700, "numeric(10,2)", typmod=1), column_type(1700, "numeric(12,2)", typmod=2)
TIMESTAMPTZ = column_type(1184, "timestamp with time zone")


def added(before: dict[str, Any], **more: Any) -> dict[str, Any]:
    return wire.table(50, [*before["columns"], wire.column(3, "b", **more)])


@pytest.mark.parametrize(
    ("old", "new", "rewrite", "sql", "stale"),
    [
        (INT, BIG, 4, ALTER, False),
        (INT, NUMERIC, 4, ALTER + ";", False),
        (BIG, INT, 4, ALTER, True),
        (INT, BIG, 4, ALTER + " USING a + 1", True),
        (INT, BIG, 4, "DO $$ begin alter table t alter a type x; end $$", True),
        (INT, BIG, 4, "select migrate()", True),
        (INT, BIG, 4, ALTER + "; update t set a = 1", True),
        (INT, BIG, 4, "ALTER TABLE elsewhere ALTER a TYPE x", True),
        (INT, BIG, 4, ALTER + " -- " + "x" * 10_000, True),
        (INT, BIG, 5, ALTER, True),
        (INT, INT, 4, ALTER, True),  # nothing in the catalog explains it
        (INT, column_type(25, "text"), 4, ALTER, True),
        (V10, V20, 0, ALTER, False),
        (V10, TWO, 0, ALTER, False),
        (TWO, V20, 0, ALTER, True),
        (V20, V10, 4, ALTER, True),
        (N10, N12, 0, ALTER, False),
        (N10, column_type(1700, "numeric(12,3)", typmod=2), 4, ALTER, True),
        (N10, NUMERIC, 0, ALTER, False),
        (column_type(1114, "timestamp without time zone"), TIMESTAMPTZ, 0, ALTER, True),
        (column_type(9, "pair", inner_rows=[[9, 1, 23, -1]]),
         column_type(9, "pair", inner_rows=[[9, 1, 23, -1], [9, 2, 23, -1]]), 0, ALTER, True),
        (column_type(9, "pair", attributes=[{"name": "x", "type": "integer"}], inner_rows=[[9, 1, 23, -1]]),
         column_type(9, "pair", attributes=[{"name": "y", "type": "integer"}], inner_rows=[[9, 1, 23, -1]]),
         0, ALTER, False),
        (column_type(9, "mood[]", inner_labels=[{"oid": 1, "label": "x"}]),
         column_type(9, "mood[]", inner_labels=[{"oid": 1, "label": "y"}]), 0, ALTER, False),
        (column_type(9, "pair", inner_labels=[{"oid": 1, "label": "x"}], inner_rows=[[9, 1, 8, -1]]),
         column_type(9, "pair", inner_labels=[{"oid": 1, "label": "y"}], inner_rows=[[9, 1, 8, -1]]), 0, ALTER, True),
        (column_type(9, "mood[]", inner_labels=[{"oid": 1, "label": "x"}]),
         column_type(9, "mood[]", inner_labels=[{"oid": 1, "label": "x"}, {"oid": 2, "label": "y"}]), 0, ALTER, False),
        (TWO, added(TWO, default="5", has_missing=True, missing="5"), 0, ALTER, False),
        (TWO, added(TWO, default="random()"), 2, ALTER, True),
        (TWO, added(TWO, identity="a"), 2, ALTER, True),
        (TWO, added(TWO, generated="v", published=False), 0, ALTER, False),
        (INT, added(BIG, default="5"), 4, ALTER, True),  # value lost in the rewrite
        (TWO, {**TWO, "persistence": "u", "published": False}, 1, ALTER, True),
        (TWO, {**TWO, "published": False}, 0, ALTER, True),
        (TWO, {**TWO, "row_filter": "(a > 1)"}, 0, ALTER, True),
        (TWO, {**TWO, "conflict": "column lists differ between publications a, b"}, 0, ALTER, True),
        ({**TWO, "conflict": "column lists differ between publications a, b"}, TWO, 0, ALTER, True),
        (TWO, {**TWO, "children": [99]}, 0, ALTER, False),  # inheritance: its rows stay the child's
        ({**TWO, "kind": "p"}, {**TWO, "kind": "p", "children": [99]}, 0, ALTER, True),
        (TWO, {**TWO, "replica_identity": "f", "key_attnums": []}, 0, ALTER, False),
        (TWO, wire.table(50, [wire.column(1, "id"), wire.column(2, "a", published=False)]), 0, ALTER, True),
        (TWO, wire.table(50, [wire.column(1, "id")]), 0, ALTER, False),
        (column_type(9, "mood", enum_labels=[{"oid": 1, "label": "x"}]),
         column_type(9, "mood", enum_labels=[{"oid": 1, "label": "y"}]), 0, ALTER, False),
        (column_type(9, "mood", enum_labels=[{"oid": 1, "label": "x"}, {"oid": 2, "label": "y"}]),
         column_type(9, "mood", enum_labels=[{"oid": 1, "label": "z"}, {"oid": 2, "label": "x"}]), 0, ALTER, True),
        (column_type(9, "mood", enum_labels=[{"oid": 1, "label": "x"}]),
         column_type(9, "mood", enum_labels=[{"oid": 1, "label": "x"}, {"oid": 2, "label": "y"}]), 0, ALTER, False),
    ],
)  # fmt: skip
def test_silent_changes(
    old: dict[str, Any], new: dict[str, Any], rewrite: int, sql: str, stale: bool, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"sql": sql}
    body = [wire.signed(701, tables=[new], **fields)]
    if rewrite:
        body.insert(0, wire.signed(701, event="table_rewrite", rewrites=[{"relid": 50, "reason": rewrite}], **fields))
    events = wire.events(tmp_path / "s", wire.transaction(1, *body), wire.context(old))
    assert bool(reasons(events)) is stale, reasons(events)


@pytest.mark.parametrize(
    ("read_with", "signed_for", "stale"),
    [({"a"}, ["a"], False), ({"a", "b"}, ["b", "a"], False), ({"a"}, ["a", "b"], True), ({"a"}, None, False)],
)
def test_what_other_publications_than_the_slot_s_send_is_stale(
    read_with: set[str], signed_for: list[str] | None, stale: bool, tmp_path: Path
) -> None:
    born = wire.table(51, [wire.column(1, "id")])
    body = [
        wire.signed(701, tables=[TWO], publications=signed_for),
        wire.signed(701, tables=[born], created=[51], tag="CREATE TABLE", publications=signed_for),
        wire.signed(701, tables=[wire.table(52, [], published=False)], publications=signed_for),
    ]
    given = wire.context(TWO, publications=frozenset(read_with))
    found = reasons(wire.events(tmp_path / "s", wire.transaction(1, *body), given))
    assert set(found) == ({50, 51} if stale else set())


def test_a_rewrite_without_the_end_of_its_command_is_stale(tmp_path: Path) -> None:
    rewrite = wire.signed(701, event="table_rewrite", rewrites=[{"relid": 50, "reason": 4}])
    events = wire.events(tmp_path / "s", wire.transaction(1, rewrite), wire.context(TWO))
    assert "not captured to its end" in reasons(events)[50]


@pytest.mark.parametrize("busy", [False, True])
def test_a_rewrite_of_a_table_born_here_matters_only_after_rows(busy: bool, tmp_path: Path) -> None:
    computed = added(TWO, default="random()")
    body = [
        wire.signed(701, tables=[TWO], created=[50], tag="CREATE TABLE"),
        *([TWO_RELATION, wire.insert(50, ("1", "x"))] if busy else []),
        wire.signed(701, event="table_rewrite", rewrites=[{"relid": 50, "reason": 2}]),
        wire.signed(701, tables=[computed]),
    ]
    events = wire.events(tmp_path / "s", wire.transaction(1, *body), wire.context())
    assert bool(reasons(events)) is busy


ROOT = wire.table(40, [wire.column(1, "id"), wire.column(2, "a", 23, "integer")], kind="p", name="root", children=[50])
LEAF = wire.table(50, [wire.column(1, "id"), wire.column(2, "a", 23, "integer")], parents=[40], published=False)


def test_a_rewritten_partition_makes_its_published_root_stale(tmp_path: Path) -> None:
    body = [
        wire.signed(701, event="table_rewrite", rewrites=[{"relid": 50, "reason": 1}]),
        wire.signed(701, tables=[{**LEAF, "persistence": "u"}, ROOT]),
    ]
    assert set(reasons(wire.events(tmp_path / "s", wire.transaction(1, *body), wire.context(ROOT, LEAF)))) == {40}


@pytest.mark.parametrize(
    ("empty", "written", "stale"),
    [(True, False, False), (False, False, True), (None, False, True), (True, True, True)],
)
def test_a_rewrite_of_a_table_without_rows_is_exact(
    empty: bool | None, written: bool, stale: bool, tmp_path: Path
) -> None:
    """It made tables stale that had never held a row. A row after the look at the table makes it unknown."""
    reported = {} if empty is None else {"empty": empty}
    body = [
        wire.signed(701, event="table_rewrite", rewrites=[{"relid": 50, "reason": 4, **reported}]),
        *([TWO_RELATION, wire.insert(50, ("1", "x"))] if written else []),
        wire.signed(701, tables=[added(column_type(25, "text"), default="random()")], sql="select rewrite()"),
    ]
    events = wire.events(tmp_path / "s", wire.transaction(1, *body), wire.context(column_type(1043, "varchar")))
    assert bool(reasons(events)) is stale, reasons(events)


@pytest.mark.parametrize(
    ("empty", "stale"), [((True, True), False), ((True, False), True), ((False, True), True), ((True,), True)]
)
def test_a_rewrite_of_a_root_is_exact_if_no_partition_has_a_row(
    empty: tuple[bool, ...], stale: bool, tmp_path: Path
) -> None:
    other = wire.table(60, LEAF["columns"], parents=[40], published=False, name="p2")
    below = wire.table(45, LEAF["columns"], parents=[40], published=False, name="p", kind="p", children=[60])
    root, leaf = {**ROOT, "children": [45, 50, 60]}, LEAF
    rewrites = [{"relid": r, "reason": 4, "empty": e} for r, e in zip((50, 60), empty, strict=False)]
    columns = [wire.column(1, "id"), wire.column(2, "a")]
    body = [
        *(wire.signed(701, event="table_rewrite", rewrites=[one]) for one in rewrites),
        wire.signed(701, tables=[{**table, "columns": columns} for table in (root, below, leaf, other)], sql="alter"),
    ]
    events = wire.events(tmp_path / "s", wire.transaction(1, *body), wire.context(root, below, leaf, other))
    assert set(reasons(events)) == ({40} if stale else set())


def test_partitions_that_come_or_go_make_the_root_stale(tmp_path: Path) -> None:
    new = wire.table(60, LEAF["columns"], parents=[40], published=False, name="p2")
    grown = {**ROOT, "children": [50, 60]}
    for fields, stale in (
        ({"tables": [grown, new], "created": [60]}, set()),  # born empty
        ({"tables": [grown, new]}, {40}),
        ({"event": "sql_drop", "dropped": [50]}, {40}),
        ({"tables": [{**ROOT, "children": []}, {**LEAF, "parents": []}]}, {40}),
    ):
        messages = wire.transaction(1, wire.signed(701, **fields))
        assert set(reasons(wire.events(tmp_path / "s", messages, wire.context(ROOT, LEAF)))) == stale, fields


def test_carry_leaves_other_snapshots_alone() -> None:
    assert ddl.carry(None, TWO) is TWO
    assert ddl.carry(TWO, THREE) is THREE
    TableVersion.from_json(THREE)
