"""Schema history from a synthetic log: versions, diffs and names, without a lake."""

from __future__ import annotations

import json

import pytest

from tests import support_history as made
from tests.support_ledger import ledger_of
from toolkit.history import versions
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import SchemaChange, TableEvent
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError, UnknownTable
from toolkit.values.lsn import Lsn
from toolkit.values.table import SchemaVersion, TableVersion

pytestmark = pytest.mark.unit

CONFIG = Config()


def _log(events: list[Event]) -> versions._Log:
    schemas = tuple(
        SchemaVersion(
            e.schema_id or 0, 1, Lsn(e.commit_lsn), Lsn(e.end_lsn), e.ordinal,
            TableVersion.from_json(json.loads(e.payload or "")), e.payload or "",
        )
        for e in events if e.kind == "schema"
    )  # fmt: skip
    ddl = tuple(
        versions._ddl_event(
            TableEvent(
                e.relid, Lsn(e.commit_lsn), e.ordinal, Lsn(e.end_lsn), 1, SchemaChange.from_json(e.payload), 1,
                None, e.xid, None,
            )
        )
        for e in events
        if e.kind == "ddl"
    )  # fmt: skip
    return versions._Log(tuple(sorted(schemas, key=order.version_order)), ddl)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions._Log, "read", classmethod(lambda _cls, _config: _log(made.events())))


def _kinds(changes: tuple[versions.Change, ...]) -> list[tuple[str, str | None]]:
    return [(c.kind, c.column) for c in changes]


def test_each_version_says_what_its_command_changed() -> None:
    found = versions.versions(ledger_of(CONFIG), "public.purchases")
    assert [_kinds(v.changes) for v in found] == [
        [("created", None)],
        [("renamed", "remark")],
        [("added", "priority")],
        [("type", "amount")],
        [("dropped", "remark")],
        [("table renamed", None)],
    ]
    assert [v.ddl and v.ddl.role for v in found] == [None, "ada", "ada", "bob", "bob", "ada"]
    assert [str(c) for c in found[2].changes] == ["added priority: integer NOT NULL DEFAULT 3"]
    assert [str(c) for c in found[3].changes] == ["type amount: numeric(10,2) -> numeric(14,2)"]


def test_versions_join_without_gap_or_overlap() -> None:
    found = versions.versions(ledger_of(CONFIG), "purchases")
    assert [v.valid_to for v in found[:-1]] == [v.valid_from for v in found[1:]]
    assert found[-1].valid_to is None


@pytest.mark.parametrize("name", ["purchases", "public.purchases", "orders", "public.orders"])
def test_every_name_that_a_table_had_means_it(name: str) -> None:
    assert versions.resolve(ledger_of(CONFIG), name).relid == made.RELID


@pytest.mark.parametrize(
    ("lsn", "columns"),
    [
        (0x1000, ["id", "amount", "note"]),
        (0x1FFF, ["id", "amount", "note"]),
        (0x2000, ["id", "amount", "remark"]),
        (0x5000, ["id", "amount", "priority"]),
        (0xFFFF, ["id", "amount", "priority"]),
    ],
)
def test_the_shape_as_of_an_lsn(lsn: int, columns: list[str]) -> None:
    assert [c.name for c in versions.show(ledger_of(CONFIG), "orders", Lsn(lsn)).table.columns] == columns


def test_before_the_first_version_there_is_no_shape() -> None:
    with pytest.raises(UnknownTable, match="begins at 0/1000"):
        versions.show(ledger_of(CONFIG), "orders", Lsn(0xFFF))


def test_a_diff_skips_what_happened_in_between() -> None:
    found = versions.diff(ledger_of(CONFIG), "orders", Lsn(0x1000), Lsn(0x5000))
    assert _kinds(found) == [("type", "amount"), ("dropped", "note"), ("added", "priority")]
    assert versions.diff(ledger_of(CONFIG), "orders", Lsn(0x2000), Lsn(0x2FFF)) == ()
    with pytest.raises(ConfigError, match="later one"):
        versions.diff(ledger_of(CONFIG), "orders", Lsn(2), Lsn(1))


def test_an_unknown_name_gets_close_ones() -> None:
    with pytest.raises(UnknownTable, match=r"did you mean public\.customers"):
        versions.versions(ledger_of(CONFIG), "custmers")


def test_dropped_and_added_again_is_not_a_rename() -> None:
    before = TableVersion.from_json(made.snapshot("t", [made.column(1, "id", "int"), made.column(2, "a", "text")]))
    after = TableVersion.from_json(made.snapshot("t", [made.column(1, "id", "int"), made.column(3, "a", "text")]))
    assert _kinds(versions.changes(before, after)) == [("dropped", "a"), ("added", "a")]


def test_key_nullability_and_default_are_changes() -> None:
    before = TableVersion.from_json(made.snapshot("t", [made.column(1, "id", "int"), made.column(2, "a", "text")]))
    shape = made.snapshot("t", [made.column(1, "id", "int"), made.column(2, "a", "text", not_null=True, default="'x'")])
    after = TableVersion.from_json(shape | {"key_attnums": [1, 2]})
    assert _kinds(versions.changes(before, after)) == [("key", None), ("nullability", "a"), ("default", "a")]


def test_publications_that_differ_are_a_change() -> None:
    shape = made.snapshot("t", [made.column(1, "id", "int")])
    before, after = (TableVersion.from_json(shape | {"conflict": c}) for c in (None, "column lists differ"))
    assert _kinds(versions.changes(before, after)) == [("publications", None)]


def test_a_dropped_table_ends_its_history() -> None:
    table = TableVersion.from_json(made.snapshots()[0])
    gone = TableVersion.from_json(made.snapshots()[0] | {"dropped": True})
    assert _kinds(versions.changes(table, gone)) == [("dropped", None)]


def test_frames_have_their_documented_columns() -> None:
    frame = versions.versions_frame(ledger_of(CONFIG), "orders")
    assert frame["changes"][1] == "renamed remark: note -> remark"
    assert (frame["role"].notna().sum(), str(frame["at"][1].tz)) == (5, "UTC")
    shape = versions.shape_frame(ledger_of(CONFIG), "orders", Lsn(0x1000))
    reported = versions.shape_frame.__doc__ or ""
    assert all(column in reported for column in shape.columns)
    assert shape["lake_type"].tolist() == ["bigint", "decimal(10,2)", "string"]
