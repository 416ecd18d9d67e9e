"""The notebook runs on a lake whose ledger holds a small schema history, and says what happened."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests import support_history as made
from tests.notebooks.pages import charts_without_a_network
from tests.support_ledger import ledger_of
from toolkit.demo import notebooks
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.values.config import Config
from toolkit.values.errors import CdcError, ConfigError
from toolkit.values.lsn import Lsn

pytestmark = [pytest.mark.notebook, pytest.mark.spark]


def _commit(config: Config, events: list[Event]) -> None:

    (config.root / "cdc.toml").write_text("", encoding="utf-8")
    identity = SourceIdentity("1", 1, 5, {"cdc": 6})
    record = BatchRecord(1, 1, Lsn(0), Lsn(0x7000), Lsn(0x7000), "slot", "cdc", identity, 0)
    ledger_of(config).append_empty(record, events)


def _printed(path: Path) -> str:
    cells = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    return "".join("".join(output.get("text", "")) for output in outputs)


@pytest.fixture
def lake_with_history(lake: Config, spark: object) -> Config:
    _commit(lake, made.events())
    return lake


def test_it_shows_versions_commands_roles_and_shape(lake_with_history: Config, tmp_path: Path) -> None:
    parameters = {"table": "orders", "as_of_lsn": "0/2000"}
    out = notebooks.run(lake_with_history, "schema_history", parameters, tmp_path / "out" / "history.html")
    text = _printed(out)
    assert "public.purchases: 6 versions, 0/1000 to now" in text
    assert "0/2000  version 3  (ada, ALTER TABLE, 2025-03-01T10:00:00+00:00)" in text
    assert "renamed remark: note -> remark" in text
    assert "type amount: numeric(10,2) -> numeric(14,2)" in text
    assert "id bigint, amount numeric(10,2), remark text\n" in text
    assert len(charts_without_a_network(out)) == 1  # the timeline
    assert "public.orders" in out.read_text(encoding="utf-8")


@pytest.mark.wide
def test_a_lost_version_shows(lake: Config, spark: object, tmp_path: Path) -> None:
    """Planted fault: without the version that the rename made, the notebook must not name the rename's author."""
    events = [e for e in made.events() if (e.kind, e.schema_id) != ("schema", 3)]
    _commit(lake, [replace(e, ordinal=9) if e.schema_id == 4 else e for e in events])
    text = _printed(notebooks.run(lake, "schema_history", {"table": "orders"}, tmp_path / "history.html"))
    assert "public.purchases: 5 versions" in text
    assert "0/2000" not in text


@pytest.mark.wide
def test_a_dropped_table_ends_where_it_was_dropped(lake: Config, spark: object, tmp_path: Path) -> None:
    events = made.events()
    *_, last = (e for e in events if e.kind == "schema")
    assert last.payload is not None
    gone = json.dumps(json.loads(last.payload) | {"dropped": True})
    _commit(lake, [*events, replace(last, schema_id=8, commit_lsn=0x6FF8, end_lsn=0x7000, payload=gone)])
    text = _printed(notebooks.run(lake, "schema_history", {"table": "orders"}, tmp_path / "history.html"))
    assert "public.purchases: 7 versions, 0/1000 to 0/7000, where it was dropped" in text


@pytest.mark.wide
def test_an_unknown_table_is_one_line(lake_with_history: Config, tmp_path: Path) -> None:
    with pytest.raises(CdcError, match="UnknownTable: no captured table is or was named 'nonsense'"):
        notebooks.run(lake_with_history, "schema_history", {"table": "nonsense"}, tmp_path / "history.html")


def test_an_unknown_notebook_lists_the_known(lake: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="schema_history"):
        notebooks.run(lake, "nonsense", {}, tmp_path / "x.html")
