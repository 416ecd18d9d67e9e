"""A second lake of one database neither takes over the capture of the first nor removes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres.test_snapshot_log import sql
from tests.support_lake import plain_lake
from toolkit.capture import initialise, slot_drain
from toolkit.lake import reads
from toolkit.lake.ledger import Ledger
from toolkit.lake.tables import EVENTS
from toolkit.source import claim, connection, install, slot
from toolkit.values.config import Config
from toolkit.values.errors import PreflightFailed

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]


@pytest.fixture
def first(source: Config, plain_lake: Config) -> Config:
    """A captured table."""
    made = source.model_copy(update={"root": plain_lake.root})
    sql(made, "create table public.a (id int primary key)")
    initialise.init(made)
    return made


def _second(first: Config, folder: Path, slot_name: str) -> Config:
    source = first.source.model_copy(update={"slot": slot_name, "publication": "cdc_second"})
    return first.model_copy(update={"root": folder, "source": source})


@pytest.mark.parametrize("slot_name", ["same", "other"])
def test_a_second_lake_is_refused_before_anything_changes(first: Config, tmp_path: Path, slot_name: str) -> None:
    second = _second(first, tmp_path / "second", first.source.slot if slot_name == "same" else "cdc_second")
    with connection.connect(first) as conn:
        before = conn.execute("select name, value from cdc.settings order by 1").fetchall()
    for new_generation in (False, True):
        with pytest.raises(PreflightFailed, match=rf"lake in {first.warehouse} captures this database"):
            initialise.init(second, new_generation=new_generation)
    assert not reads.tables(second, "raw")
    with connection.connect(first) as conn:
        assert conn.execute("select name, value from cdc.settings order by 1").fetchall() == before
        assert slot.read_slot(conn, "cdc_second") is None
        slot.require_slot(conn, first)
    sql(first, "insert into public.a values (1)")
    assert slot_drain.drain(first).changes == 1


def test_of_two_first_inits_the_second_is_refused_in_its_transaction(first: Config) -> None:
    """Both may have found no claim before they made their lakes; what the second wrote is rolled back."""
    with connection.connect(first) as conn:
        before = conn.execute("select name, value from cdc.settings order by 1").fetchall()
        second = first.model_copy(update={"source": first.source.model_copy(update={"publication": "cdc_second"})})
        other = claim.Claim("another", "/elsewhere", "cdc_second", claim.database_of(conn))
        with pytest.raises(PreflightFailed, match="captures this database"):
            install.install(conn, second, other)
        assert conn.execute("select name, value from cdc.settings order by 1").fetchall() == before


def test_a_second_lake_does_not_uninstall_the_capture_of_the_first(first: Config, tmp_path: Path) -> None:
    with pytest.raises(PreflightFailed, match="captures this database"):
        initialise.uninstall(_second(first, tmp_path / "second", "cdc_second"))
    sql(first, "insert into public.a values (1)")
    assert slot_drain.drain(first).changes == 1


def test_a_lake_that_is_gone_gives_up_its_capture(first: Config, tmp_path: Path) -> None:
    """Its configuration alone is enough to uninstall, and a capture whose slot was dropped is free for another."""
    again = first.model_copy(update={"root": tmp_path / "again"})
    with pytest.raises(PreflightFailed, match="If its files are lost, any configuration with slot"):
        initialise.init(again)
    initialise.uninstall(again)
    assert set(initialise.init(again).rows) == {"public.a"}
    with connection.connect(again) as conn:
        slot.drop_slot(conn, again.source.slot)
    third = _second(first, tmp_path / "third", "cdc_third")
    assert set(initialise.init(third).rows) == {"public.a"}
    with connection.connect(third) as conn:
        found = claim.read_claim(conn)
    assert found is not None
    assert found.lake == reads.table_uuid(third, EVENTS)
    assert (found.warehouse, found.slot) == (third.warehouse, "cdc_third")
    assert Ledger(third).last() is not None
