"""Which rows `cdc repair --rows` and `--differing` mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from toolkit.cli import main
from toolkit.lake import proofs, scans
from toolkit.quality import differing_rows
from toolkit.rawlog import states
from toolkit.values.errors import ConfigError, UnknownTable

pytestmark = pytest.mark.unit


def test_rows_that_name_a_column_twice_are_refused() -> None:
    """The last value counted: the row 1 was not copied, and nothing said so."""
    done = CliRunner().invoke(main, ["repair", "public.a", "--rows", '[{"id": "1", "id": "2"}]'])
    assert done.exit_code == 2 and "names the column 'id' twice" in " ".join(done.output.split())


def test_differing_rows_are_those_of_the_table_that_has_the_name_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables that traded names since the check: the copy of one's keys from the other made a difference ok."""
    rows = {
        1: {"relid": 1, "table": "public.a", "status": "different", "checked_at": 5, "reason": None},
        2: {"relid": 2, "table": "public.b", "status": "different", "checked_at": 5, "reason": None},
        3: {"relid": 3, "table": "public.c", "status": "identical", "checked_at": 5, "reason": None},
    }
    live = {"public.b": 1, "public.a": 2, "public.new": 4}
    access = SimpleNamespace(names=SimpleNamespace(differing_rows="ops.parity_rows"))
    lake: Any = SimpleNamespace(access=access, ledger=None)
    monkeypatch.setattr(
        states, "live_tables", lambda _: [SimpleNamespace(identifier=n, relid=r) for n, r in live.items()]
    )
    monkeypatch.setattr(proofs, "proofs_by_relid", lambda _: rows)
    monkeypatch.setattr(scans, "scan", lambda *_, where: [{"key": [("id", str(where[0][0][2]))]}])
    assert differing_rows.keys(lake, "public.a") == ({"id": "2"},)
    assert differing_rows.keys(lake, "public.b") == differing_rows.keys(lake, '"b"') == ({"id": "1"},)
    with pytest.raises(ConfigError, match="no check has compared it yet"):
        differing_rows.keys(lake, "public.new")
    with pytest.raises(UnknownTable, match=r"did you mean public\.new"):
        differing_rows.keys(lake, "neu")
