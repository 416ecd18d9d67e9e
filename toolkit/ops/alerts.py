"""Find what is wrong beyond the states of the tables: checks, proofs, the last runs, disks, WAL and the lease."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.lake.lake_catalog import open_catalog
from toolkit.rawlog.states import State
from toolkit.values.errors import CdcError
from toolkit.values.locations import local_path
from toolkit.values.log_setup import logger
from toolkit.values.names import command
from toolkit.values.outcome import CheckStatus

if TYPE_CHECKING:
    from toolkit.lake.lease import Holder
    from toolkit.ops.last_run import LastRun
    from toolkit.ops.table_results import TableStatus
    from toolkit.source.connection import Connection
    from toolkit.source.pressure import Pressure
    from toolkit.source.slot import SlotState
    from toolkit.values.capture_rules import SourceConfig
    from toolkit.values.config import CheckConfig, Config, LimitsConfig, NotifyConfig
    from toolkit.values.lake_access import LakeAccess


_log = logger(__name__)
#: How far the clocks of two runners may differ before a proof counts as one from the future.
_AHEAD_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing that is wrong: what, how it was found, and what to do."""

    what: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.found}; {self.remedy}"


def of_tables(check: CheckConfig, tables: Iterable[TableStatus]) -> Iterator[Alert]:
    """Find tables that the last check did not prove, and proofs that are older than `[check] fresh_hours`."""
    none = True
    for table in tables:
        none = False
        what = f"table {table.table}"
        if table.state == State.OK and table.last_check not in (None, CheckStatus.IDENTICAL):
            reason = f": {table.last_reason}" if table.last_reason else ""
            yield Alert(
                what, f"the last check found it {table.last_check}{reason}", f"run `{command('check', table.table)}`"
            )
        if table.proof_lost:
            yield Alert(what, "the table snapshot that was proven, which `published` shows, is gone", "run `cdc check`")
        if table.orphans:
            found = f"{table.orphans} rows reference a row that is missing, on the source too"
            yield Alert(what, found, "correct them at the source, then run `cdc check --full`")
        if table.checked_seconds is not None and table.checked_seconds > check.fresh_hours * 3600:
            found = f"it was proven {table.checked_seconds / 3600:,.1f} h ago, and [check] fresh_hours is"
            remedy = "run `cdc run`, and see why the scheduler did not"
            yield Alert(what, f"{found} {check.fresh_hours:g}", remedy)
        if table.checked_seconds is not None and table.checked_seconds < -_AHEAD_SECONDS:
            found = f"it was proven {-table.checked_seconds / 3600:,.1f} h from now by the clock of the runner then"
            yield Alert(what, found, "correct the clock of this machine or of that one, then run `cdc check`")
    if none:
        yield Alert("tables", "no table is captured", "name tables in [source] tables and run `cdc init`")


def of_runs(runs: Iterable[LastRun]) -> Iterator[Alert]:
    """Find commands that last failed."""
    for run in runs:
        if run.exit_code:
            found = f"ended with exit code {run.exit_code} at {run.at}: {run.problem or 'no reason was given'}"
            again = " or ".join(f"`{command(name)}`" for name in dict.fromkeys((run.command, "run")))
            yield Alert(f"the last {run.command}", found, f"correct that, then run {again}")


def of_lease(notify: NotifyConfig, holder: Holder | None) -> Iterator[Alert]:
    """Find a lease that is held for longer than `[notify] lease_minutes`."""
    longest = timedelta(minutes=notify.lease_minutes)
    if holder is not None and holder.since is not None and datetime.now(UTC) - holder.since > longest:
        remedy = f"wait for that process, or run `kill {holder.pid}` on its machine"
        yield Alert("the lease of the lake", f"held by {holder.text}", remedy)


def free_mb(access: LakeAccess, spool: Path) -> dict[str, int]:
    """Read the free space of the folders that a run writes to, in MB."""
    folders = {
        "warehouse": local_path(access.warehouse),
        "spool": spool,
        "catalog": open_catalog(access).folder,
    }
    here = {name: path for name, path in folders.items() if path is not None}
    return {name: shutil.disk_usage(_existing(path)).free // 1_000_000 for name, path in here.items()}


def at_the_end(config: Config) -> tuple[Alert, ...]:
    """Find problems of the disks and the server after a command that succeeded. Needs no JVM and reads no lake."""
    from toolkit.source import connection, pressure
    from toolkit.source.opened import open_source

    wrong = list(of_disks(config.limits, free_mb(config.lake_access, config.source_access.spool_dir)))
    try:
        with open_source(config.source_access) as source:
            found = pressure.read_pressure(source.conn)
            wrong += of_server(config.limits, config.source, source.slot, found, by_ticks=source.by_ticks)
            wrong += of_writes(source.conn, config.source)
    except (CdcError, connection.DriverError) as error:
        _log.warning("the source was not examined after the command", extra={"reason": connection.one_line(error)})
    return tuple(wrong)


def of_disks(limits: LimitsConfig, free: Mapping[str, int]) -> Iterator[Alert]:
    """Find folders with less free space than `[limits] free_mb`."""
    for name, left in free.items():
        if left < limits.free_mb:
            found = f"{left:,} MB free, and [limits] free_mb is {limits.free_mb:g}"
            yield Alert(f"the disk of the {name} folder", found, "free space there, or run `cdc maintain`")


def of_server(
    limits: LimitsConfig, source: SourceConfig, slot: SlotState | None, pressure: Pressure, *, by_ticks: bool
) -> Iterator[Alert]:
    """Find WAL that grows for the slot, WAL that will be lost, slots and senders in use, and an old transaction.

    Ticks need neither slots nor senders.
    """
    name = f"slot {source.slot!r}"
    if slot is not None and not slot.lost:
        kept = (slot.retained or 0) / 1e6
        if kept > limits.wal_mb:
            most_kept = "without limit" if pressure.keep_mb < 0 else f"and at most {pressure.keep_mb:,} MB"
            found = f"keeps {kept:,.0f} MB of WAL {most_kept}, and [limits] wal_mb is {limits.wal_mb:g}"
            yield Alert(name, found, "run `cdc drain`, and end old transactions of the source if it stays")
        if slot.wal_status == "unreserved":
            more = f"alter system set max_slot_wal_keep_size = '{max(1, pressure.keep_mb) * 2}MB'"
            remedy = f"run `cdc drain`, then run: {more}; select pg_reload_conf()"
            yield Alert(name, "may lose its WAL at the next checkpoint", remedy)
    for what, used, most in (
        ("max_replication_slots", pressure.slots_used, pressure.slots),
        ("max_wal_senders", pressure.senders_used, pressure.senders),
    ):
        if used >= most and not by_ticks:
            found = f"{used} of {most} in use: a check or repair needs one more"
            more = f"run: alter system set {what} = {most + 10}, then restart the server"
            yield Alert(what, found, f"drop an unused slot, or {more}")
    if (pressure.oldest_seconds or 0) > limits.transaction_minutes * 60:
        found = f"{pressure.oldest} has been running for {(pressure.oldest_seconds or 0) / 60:,.0f} min"
        yield Alert("transactions of the source", found, f"run: {pressure.oldest_ends}")


def of_writes(conn: Connection, source: SourceConfig) -> Iterator[Alert]:
    """Find tables in the toolkit's own publication whose UPDATE and DELETE the server refuses to the application."""
    from toolkit.source import own_publication

    for what, found, remedy in own_publication.refused_writes(conn, source):
        yield Alert(what, found, remedy)


def _existing(path: Path) -> Path:
    """Return the folder that exists nearest to a path. One that this account may not enter hides what is in it."""
    return next(one for one in (path, *path.parents) if os.access(one, os.F_OK))
