"""What is erased is in no file of the lake after the next build and upkeep, and everything else is as before."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import commands
from tests.support_ledger import lake_of, ledger_of
from toolkit.history import rows_at_lsn
from toolkit.history.commit_times import lsn_at
from toolkit.lake import proofs, reads, storage
from toolkit.ops import diagnosis
from toolkit.rawlog.states import State
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError, NotProven
from toolkit.values.lsn import Lsn

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt]

_SECRETS = ("Ada Lovelace", "ada@example.org")


def _tables_with(config: Config, text: str) -> set[str]:
    """The namespaces with a data file that has a text in any cell, also files that only old table snapshots name."""
    access, found = config.lake_access, set()
    properties = storage.file_properties(access)
    for name in storage.names(access.warehouse, properties):
        if name.endswith(".parquet"):
            file = pa.BufferReader(storage.read(f"{access.warehouse}/{name}", properties))
            if any(text in str(column.to_pylist()) for column in pq.read_table(file).columns):
                found.add(name.partition("/")[0])
    return found


def _settled(config: Config) -> None:
    """Build, prove and keep nothing for its age."""
    commands.build(config)
    assert commands.check(config).green
    commands.maintain(config)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_what_is_erased_is_in_no_file_of_the_lake(database: str, lake: Config) -> None:
    now = lake.lake.model_copy(update={"keep_days": 0.0})
    config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": database}), "lake": now})
    with psycopg.connect(database, autocommit=True) as conn:
        for name in ("customer", "other", "gone"):
            conn.execute(f"create table public.{name} (id int primary key, name text, mail text)".encode())
            conn.execute(f"insert into public.{name} values (1, 'Grace', 'g@example.org')".encode())
        conn.execute("insert into public.customer values (2, %s, 'old')", (_SECRETS[0],))
        conn.execute("insert into public.gone values (2, %s, 'old')", (_SECRETS[0],))
        commands.init(config)
        conn.execute("update public.customer set mail = %s where id = 2", (_SECRETS[1],))
        conn.execute("update public.other set mail = 'new'")
        assert commands.check(config).green
        before = commands.drain(config).committed_lsn
        with pytest.raises(ConfigError, match=r"its log begins with the copy at .*`cdc repair public.customer`"):
            commands.erase(config, "public.customer")

        conn.execute("drop table public.gone")
        commands.drain(config)
        moment = datetime.now(UTC)
        conn.execute("delete from public.customer where id = 2")
        commands.repair(config, ["public.customer"])
        with pytest.raises(NotProven, match=r"no check has proven its copy at .*`cdc check public.customer`"):
            commands.erase(config, "public.customer")
        _settled(config)
        assert _tables_with(config, _SECRETS[0]) >= {"raw", "history"}  # all of this is what the log is for

        customer, gone = commands.erase(config, "public.customer", "public.gone")
        assert customer.erased_before > before
        assert commands.erase(config, "public.customer", "public.gone") == (customer, gone)
        with pytest.raises(ConfigError, match=f"its rows before {customer.erased_before} were erased"):
            rows_at_lsn.rows(lake_of(config), "public.customer", before)
        assert lsn_at(lake_of(config), moment) < customer.erased_before
        (due,) = diagnosis._due_maintenance(ledger_of(config))
        assert (due.found, due.remedy) == (
            "raw.events still has erased rows of public.customer, public.gone", "run `cdc build`, then `cdc maintain`"
        )  # fmt: skip
        built = commands.build(config)
        assert {m.name for m in built.models if m.action == "rebuild"} >= {"history.public__customer"}
        assert not any("gone" in name for name in reads.tables(config.lake_access, "history"))
        deleted = {one.table: one.erased for one in commands.maintain(config)}
        assert deleted["raw.events"] >= 6 and sum(deleted.values()) == deleted["raw.events"]
        _settled(config)

        assert diagnosis._due_maintenance(ledger_of(config)) == []
        # The only commit between the moment and the copy is erased. No later one may stand for it.
        assert before <= lsn_at(lake_of(config), moment) < customer.erased_before
        for secret in _SECRETS:
            assert _tables_with(config, secret) <= {"current"}  # the view of the dropped table, as it was last proven
        assert _tables_with(config, "g@example.org") >= {"raw", "history", "current"}
        log = ledger_of(config)
        assert all(state.state == State.OK for state in proofs.current_states(log))
        assert [e.relid for e in log.erasures()] and log.current().erasures() == log.erasures()
        # The other table's past is as it was, and this one's begins with the copy.
        (old,) = rows_at_lsn.rows(lake_of(config), "public.other", before)
        assert old["mail"] == "new"
        (only,) = rows_at_lsn.rows(lake_of(config), "public.customer", Lsn(customer.erased_before))
        assert only["id"] == "1"
        stale = {state.table: state.reason for state in commands.build(config, as_of=before).stale}
        assert stale == {
            "public.customer": f"its rows before {customer.erased_before} were erased",
            "public.gone": f"its rows before {gone.erased_before} were erased",
        }
        conn.execute("update public.customer set name = 'Grace Hopper'")
        commands.drain(config)
        commands.build(config, dbt_args=["--full-refresh"])
        assert commands.check(config, full=True).green
