"""What happens between a repair's first drain and its cut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests import commands
from tests.postgres.test_snapshot_log import at, by, config, current, of, on_source, sql
from tests.support_lake import plain_lake
from tests.support_ledger import ledger_of
from toolkit.source import connection, slot, snapshot_rows, ticks
from toolkit.source.locks import LockTimeout
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn

__all__ = ["by", "config", "plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]


@pytest.mark.parametrize(
    ("by", "unexplained"),
    [
        ("slot", "set event_triggers = off; alter table public.a alter x type text using x || '!'"),
        ("tick", "set event_triggers = off; alter table public.a alter y type varchar using y || '!'"),
        (
            "slot",
            "alter event trigger _cdc_0_rewrite disable; alter event trigger _cdc_0_rewrite enable always",
        ),
    ],
    ids=["a rewrite", "a type, by ticks", "switched off and on"],
    indirect=["by"],
)
def test_what_passes_capture_between_the_drain_of_a_repair_and_its_cut_leaves_a_gap(
    config: Config, monkeypatch: pytest.MonkeyPatch, unexplained: str
) -> None:
    """The copy is right, and the next comparison starts there: no one else would record the time before."""
    commands.init(config)
    before = commands.drain(config).committed_lsn
    taken = ticks.exact_cut
    between: list[Lsn] = []

    def exact_cut(*given: Any, **more: Any) -> Any:
        sql(config, unexplained)
        with connection.connect(config.source) as conn:
            between.append(slot.wait_flush(conn))
        sql(config, "update public.a set y = 'z' where id = 3")
        return taken(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(ticks, "exact_cut", exact_cut)
        done = commands.repair(config, ["public.a"])
    assert [at(config, "a", lsn) for lsn in (before, between[0], done.lsn)] == ["ok", "stale", "ok"]
    commands.drain(config)
    last = ledger_of(config).last()
    assert last is not None
    assert at(config, "a", last.complete_to) == "ok"  # nothing has happened since
    assert of(config, "a").repaired_lsn == done.lsn
    assert current(config, "a") == on_source(config, "a")


def test_ddl_that_holds_a_table_at_the_cut_of_a_repair_is_waited_for_with_a_bound(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server opens a table to print its defaults: without a bound the cut's snapshot was held as long."""
    sql(config, "alter table public.b add v int default 7")
    commands.init(config)
    config = config.model_copy(update={"snapshot": config.snapshot.model_copy(update={"lock_seconds": 0.5})})
    taken = ticks.exact_cut
    with psycopg.connect(config.source.conninfo, application_name="migration") as holder:

        @contextmanager
        def exact_cut(*given: Any, **more: Any) -> Iterator[slot.Cut]:
            with taken(*given, **more) as cut:
                holder.execute("alter table public.b add w int")
                yield cut

        monkeypatch.setattr(ticks, "exact_cut", exact_cut)
        with pytest.raises(LockTimeout, match=r"reading the catalog at .*waited 0\.5 s .* migration"):
            commands.repair(config, ["public.a"])
        holder.rollback()
    monkeypatch.undo()
    assert commands.repair(config, ["public.a"]).rows == {"public.a": 20}


def test_ddl_that_holds_a_table_when_it_is_sized_is_waited_for_with_a_bound(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a default to print, the first to open the table was pg_relation_size, and it waited without end."""
    commands.init(config)
    config = config.model_copy(update={"snapshot": config.snapshot.model_copy(update={"lock_seconds": 0.5})})
    taken, pieces = ticks.exact_cut, snapshot_rows.pieces
    refusals: list[str] = []
    with psycopg.connect(
        config.source.conninfo, application_name="migration", options="-c idle_in_transaction_session_timeout=5s"
    ) as holder:

        @contextmanager
        def exact_cut(*given: Any, **more: Any) -> Iterator[slot.Cut]:
            holder.rollback()
            with taken(*given, **more) as cut:
                if not refusals:
                    holder.execute("alter table public.a add w int")
                yield cut

        def reported(*args: Any, **options: Any) -> Any:
            try:
                return pieces(*args, **options)
            except snapshot_rows.TableRefused as error:
                refusals.append(str(error))
                raise

        monkeypatch.setattr(ticks, "exact_cut", exact_cut)
        monkeypatch.setattr(snapshot_rows, "pieces", reported)
        assert commands.repair(config, ["public.a", "public.b"]).rows == {"public.a": 20, "public.b": 5}
        assert len(refusals) == 1 and re.search(r"copying public\.a: waited 0\.5 s .* migration", refusals[0])
        holder.execute("alter table public.a add w int")
        tables = [v.table for v in ledger_of(config).latest_versions().values()]
        assert [
            t.name
            for t in tables
            if t.relid in snapshot_rows.estimate(config.source, tables, lock_seconds=config.snapshot.lock_seconds)
        ] == ["b"]
