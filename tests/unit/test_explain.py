"""A column's life from a synthetic log: renamed, dropped and added again under its old name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import support_history as made
from tests.support_ledger import ledger_of
from tests.unit import test_history
from toolkit.history import column_life, versions
from toolkit.history.column_life import Seen
from toolkit.rawlog.arrow import Event
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError
from toolkit.values.lsn import Lsn

pytestmark = pytest.mark.unit

CONFIG = Config()


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    events = made.events()
    shape = made.snapshots()[-1]
    shape["columns"] = [*shape["columns"], made.column(5, "note", "bigint", comment="again")]
    base: dict[str, Any] = {"batch_id": 1, "generation": 1, "commit_lsn": 0x7000 - 8, "ordinal": 1, "end_lsn": 0x7000}
    payload = {"event": "ddl_command_end", "tag": "ALTER TABLE", "role": "eve", "sql": "alter table ...", "tables": []}
    events.append(Event(**base, kind="ddl", payload=json.dumps(payload)))
    events.append(Event(**base, kind="schema", relid=made.RELID, schema_id=8, payload=json.dumps(shape)))
    monkeypatch.setattr(versions._Log, "read", classmethod(lambda _cls, _config: test_history._log(events)))
    images = {
        (1, 1): Seen(5, Lsn(0x1000), Lsn(0x1800)),
        (1, 3): Seen(1, Lsn(0x2100), Lsn(0x2100)),
        (1, 4): Seen(2, Lsn(0x3100), Lsn(0x3900)),
    }
    monkeypatch.setattr(column_life, "_images", lambda _config, _relid: images)


def test_a_name_with_two_lives() -> None:
    found = column_life.explain(ledger_of(CONFIG), "purchases", "note")
    lives = [(s.attnum, s.name, int(s.valid_from), s.valid_to and int(s.valid_to), s.dropped) for s in found]
    assert lives == [
        (3, "note", 0x1000, 0x2000, False),
        (3, "remark", 0x2000, 0x5000, False),
        (3, "remark", 0x5000, None, True),
        (5, "note", 0x7000, None, False),
    ]
    assert [s.ddl.role if s.ddl else None for s in found] == [None, "ada", "bob", "eve"]
    assert [s.seen for s in found] == [
        Seen(5, Lsn(0x1000), Lsn(0x1800)),
        Seen(3, Lsn(0x2100), Lsn(0x3900)),
        None,
        None,
    ]
    assert [[c.kind for c in s.changes] for s in found] == [[], ["renamed"], ["dropped"], ["added"]]
    assert {s.attnum for s in column_life.explain(ledger_of(CONFIG), "purchases")} == {1, 2, 3, 4, 5}


def test_an_unknown_column_is_named_with_close_ones() -> None:
    with pytest.raises(ConfigError, match=r"never had a column 'remrk'; did you mean remark"):
        column_life.explain(ledger_of(CONFIG), "purchases", "remrk")


def test_the_frame_has_the_documented_columns() -> None:
    frame = column_life.explain_frame(ledger_of(CONFIG), "purchases", "remark")
    assert column_life.explain_frame.__doc__ is not None
    for column in frame.columns:
        assert column in column_life.explain_frame.__doc__
    assert frame["rows"].tolist() == [5, 3, 0]


def test_the_frame_of_a_table_without_columns_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(column_life.explain_frame(ledger_of(CONFIG), "purchases").columns)
    monkeypatch.setattr(column_life, "explain", lambda *_: ())
    frame = column_life.explain_frame(ledger_of(CONFIG), "purchases")
    assert (list(frame.columns), len(frame)) == (expected, 0)
