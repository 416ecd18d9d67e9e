"""Find everything that is wrong or will become wrong, each with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.lake.opened import Lake
from toolkit.rawlog.states import State
from toolkit.values.errors import CdcError
from toolkit.values.locations import is_within, local_path
from toolkit.values.outcome import Level

if TYPE_CHECKING:
    from collections.abc import Iterable

    from toolkit.lake.ledger import Ledger
    from toolkit.ops.alerts import Alert
    from toolkit.rawlog.states import TableState
    from toolkit.values.config import Config

_MANY_SNAPSHOTS = 300  # three days of drains every 15 minutes; an empty drain then takes a second longer


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one test."""

    level: Level
    what: str
    found: str
    remedy: str | None


def doctor(config: Config) -> tuple[Diagnosis, ...]:
    """Examine Java, the source, the slot, the lake and every table."""
    lake = Lake(config.lake_access, rules=config.capture_rules)
    return (*_java(), *_source(config, lake), *_lake(config, lake), *_machine(config))


def _machine(config: Config) -> list[Diagnosis]:
    """Examine the results of the last runs, the lease and the disks."""
    from toolkit.lake.lease import holder
    from toolkit.ops import alerts
    from toolkit.ops.last_run import last_runs

    runs, held = last_runs(config.lake_access), holder(config.lake_access)
    free = alerts.free_mb(config.lake_access, config.source_access.spool_dir)
    wrong = [*alerts.of_runs(runs), *alerts.of_lease(config.notify, held), *alerts.of_disks(config.limits, free)]
    shown = ", ".join(f"{name} {left:,} MB free" for name, left in free.items())
    return [Diagnosis(Level.OK, "disks", shown, None), *map(_error, wrong)]


def _of_error(what: str, error: CdcError, before: str = "") -> Diagnosis:
    return Diagnosis(Level.ERROR, what, before + str(error).removesuffix(f"; {error.remedy}"), error.remedy)


def _error(alert: Alert) -> Diagnosis:
    return Diagnosis(Level.ERROR, alert.what, alert.found, alert.remedy)


def _java() -> list[Diagnosis]:
    from toolkit.lake import java

    try:
        return [Diagnosis(Level.OK, "java", str(java.find_java()), None)]
    except CdcError as error:
        return [_of_error("java", error)]


def _source(config: Config, lake: Lake) -> list[Diagnosis]:
    from toolkit.capture import slot_drain
    from toolkit.ops import alerts
    from toolkit.source import catalog, connection, preflight, pressure, slot
    from toolkit.source.opened import open_source

    found: list[Diagnosis] = []
    try:
        with open_source(config.source_access) as source:
            conn = source.conn
            findings = preflight.preflight(conn, config.capture_rules, ddl=config.ddl)
            found += [Diagnosis(f.level, f.what, f.found, f.remedy) for f in findings]
            if not findings:
                found.append(Diagnosis(Level.OK, "source", "nothing prevents capture", None))
            if not catalog.installed(conn):
                found.append(
                    Diagnosis(Level.ERROR, "schema cdc", "is not on the source: nothing is captured", "run `cdc init`")
                )
            outside = ", ".join(f"{count} {kind}" for kind, count in preflight.outside(conn).items())
            if outside:
                found.append(Diagnosis(Level.OK, "out of scope", f"{outside}: they give no events", None))
            state = source.slot
            if source.by_ticks:
                found.append(Diagnosis(Level.OK, "change log", "drained by ticks: exact at ticks only", None))
            elif state is None:
                found.append(Diagnosis(Level.ERROR, f"slot {config.source.slot}", "does not exist", "run `cdc init`"))
            elif not state.lost:  # otherwise the findings contain it
                found.append(Diagnosis(Level.OK, f"slot {config.source.slot}", f"wal_status {state.wal_status}", None))
            known = {f.what for f in findings if f.level == Level.ERROR}
            left = pressure.read_pressure(conn)
            wrong = alerts.of_server(config.limits, config.source, state, left, by_ticks=source.by_ticks)
            found += [_error(alert) for alert in wrong if alert.what not in known]
            last = lake.ledger.last()
            refused = slot_drain.refusal(source, last) if last is not None else None
            if refused is not None:
                found.append(_of_error("source", refused, "a drain refuses it: "))
            spilled = slot.spilled(conn, config.source.slot)
            if spilled:
                what = f"decoding has spilled {spilled / 1e6:,.0f} MB to the source's disk so far"
                more = "alter system set logical_decoding_work_mem = '256MB'; select pg_reload_conf()"
                remedy = f"use smaller transactions, or run: {more}"
                found.append(Diagnosis(Level.WARNING, f"slot {config.source.slot}", what, remedy))
    except CdcError as error:
        found.append(_of_error("source", error))
    except connection.DriverError as error:
        if connection.lost(error) is None:
            raise
        remedy = "check network and server, and run it again"
        found.append(Diagnosis(Level.ERROR, "source", f"the connection was lost: {connection.lost(error)}", remedy))
    return found


def _lake(config: Config, lake: Lake) -> list[Diagnosis]:
    from toolkit.lake import log_layout, session
    from toolkit.lake.tables import require_writable
    from toolkit.ops import alerts
    from toolkit.ops.table_results import checked_tables

    found: list[Diagnosis] = []
    settings = session.spark_settings(config.lake_access)
    unique = f"spark.sql.catalog.{config.lake.catalog}.unique-table-location"
    if settings.get(unique) != "true":
        what = "unique-table-location is off: a re-created table may lose data"
        found.append(Diagnosis(Level.ERROR, "lake", what, f'take "{unique}" out of [spark]'))
    found += _spark(config)
    damaged = _damaged(lake)
    found += damaged
    try:
        require_writable(config.lake_access)
        log_layout.require(config.lake_access)
        ledger = lake.ledger
        last = ledger.last()
        if last is None:
            return [*found, Diagnosis(Level.ERROR, "lake", "there is no ledger", "run `cdc init`")]
        found.append(Diagnosis(Level.OK, "lake", f"batch {last.batch_id}, complete to {last.complete_to}", None))
        found += [*_due_maintenance(ledger), *_borrowed(ledger)]
        tables, _ = checked_tables(ledger)
        found += stale_tables(tables)
        found += map(_error, alerts.of_tables(config.check, tables))
    except CdcError as error:
        if not damaged:  # else it was said already, with its remedy
            found.append(_of_error("lake", error))
    return found


def _spark(config: Config) -> list[Diagnosis]:
    """Report where tasks run and where they read the bytes of a peek. On a cluster, check the executors."""
    from toolkit.capture import executor_copies
    from toolkit.lake import cluster, session

    spool = str(config.source_access.spool_dir)
    if not cluster.is_cluster(config.lake_access):
        return [Diagnosis(Level.OK, "spool", f"{spool}: on this machine, where all tasks run", None)]
    what = f"{spool} on this machine; executors read copies in {cluster.spool_folder(config.lake_access)}"
    found = [Diagnosis(Level.OK, "spool", what, None)]
    name = f"cluster {config.spark[cluster.MASTER]}"
    if cluster.is_open(config.lake_access):
        what = "its processes neither authenticate nor encrypt: whoever reaches its ports can run programs there"
        found.append(Diagnosis(Level.WARNING, name, what, "set spark.authenticate to true, here and on its processes"))
    try:
        hosts = cluster.require_fit(session.own_session(config.lake_access), config.lake_access)
        what = f"executors on {', '.join(hosts)} have the driver's code and read its spool"
        if executor_copies.on_executors(config.source_access, config.lake_access):
            executor_copies.require_connected(config.source_access, config.lake_access)
            what += ", and they reach the source"
        found.append(Diagnosis(Level.OK, name, what, None))
    except CdcError as error:
        found.append(_of_error(name, error))
    return found


def _damaged(lake: Lake) -> list[Diagnosis]:
    """List the tables and views whose metadata cannot be read, and those of `raw` and `ops` that lack files.

    Of the log, the files of its newest commit are read, and lost ones of others are found. Builds and checks name a
    table of users that lacks one.
    """
    from toolkit.lake import reads, scans, storage
    from toolkit.lake.stored_log import StoredLog

    found: list[Diagnosis] = []
    try:
        storage.require_writable(lake.access.warehouse, storage.file_properties(lake.access))
        names = [
            f"{namespace}.{name}"
            for namespace in lake.access.names.all
            for kind in ("TABLE", "VIEW")
            for name in reads.tables(lake.access, namespace, kind)
        ]
    except CdcError:  # of the warehouse or the catalog itself: reported by who opens the lake
        return found
    if (moved := _moved(lake)) is not None:
        return [moved]
    for name in names:
        try:
            newest = reads.snapshot_id(lake.access, name)
            if name == lake.access.names.events:
                StoredLog(lake.access, rules=lake.rules).force(newest)
                found += _lost_of_log(lake)
            elif name.startswith(f"{lake.access.names.ops}.") and newest is not None:
                scans.require_files(lake.access, name)
        except CdcError as error:
            found.append(Diagnosis(Level.ERROR, f"lake {name}", str(error), reads.restore_remedy(lake.access, name)))
    return found


def _moved(lake: Lake) -> Diagnosis | None:
    """Find a lake that was moved or renamed: Iceberg names each file by its whole path."""
    from toolkit.lake import reads

    location = reads.metadata_location(lake.access, lake.access.names.events)
    path = None if location is None else local_path(location)
    if path is None or path.exists() or is_within(str(path), lake.access.warehouse):
        return None
    what = f"its files are named as {path}, and the warehouse is {lake.access.warehouse}: it was moved"
    remedy = "move it back, or put a symbolic link to it where it was"
    return Diagnosis(Level.ERROR, "lake", what, remedy)


def _lost_of_log(lake: Lake) -> list[Diagnosis]:
    """Report lost files of older commits to the log, except those of a log before it."""
    from toolkit.lake import scans

    name = lake.access.names.events
    remedy = (
        "restore what is lost from a backup of the lake or from older versions of its objects; or run"
        " `cdc init --new-generation`, which begins a new log with a copy of every table"
    )
    try:
        last = lake.ledger.last()
        lost = scans.lost_files(lake.access, name, () if last is None else ((("generation", "=", last.generation),),))
    except CdcError as error:
        return [Diagnosis(Level.ERROR, f"lake {name}", str(error).removesuffix(f"; {error.remedy}"), remedy)]
    if not lost:
        return []
    what = f"data files that are lost: {len(lost)}, such as {lost[0]}; no build can read their rows"
    return [Diagnosis(Level.ERROR, f"lake {name}", what, remedy)]


def stale_tables(states: Iterable[TableState]) -> list[Diagnosis]:
    """Return an error for each table that is not `ok`."""
    return [
        Diagnosis(Level.ERROR, f"table {s.table}", f"{s.state} from {s.from_lsn}: {s.reason}", s.remedy)
        for s in states
        if s.state != State.OK
    ]


def _due_maintenance(ledger: Ledger) -> list[Diagnosis]:
    from toolkit.lake import reads

    events, last, found = ledger.access.names.events, ledger.last(), []
    snapshots = len((reads.metadata(ledger.access, events) or {}).get("snapshots") or ())
    if snapshots >= _MANY_SNAPSHOTS:
        what = f"{events} holds {snapshots:,} table snapshots: every command reads what they name"
        found.append(Diagnosis(Level.WARNING, "lake", what, "run `cdc maintain`, once a day"))
    done = -1 if last is None or last.checkpoint is None else last.checkpoint  # maintenance begins with a checkpoint
    versions, erasures = ledger.latest_versions(), ledger.current().erasures()
    erased = {versions[e.relid].table.identifier for e in erasures if e.batch_id > done and e.relid in versions}
    if erased:
        what = f"{events} still has erased rows of {', '.join(sorted(erased))}"
        found.append(Diagnosis(Level.WARNING, "lake", what, "run `cdc build`, then `cdc maintain`"))
    return found


def _borrowed(ledger: Ledger) -> list[Diagnosis]:
    from toolkit.rawlog.states import live_tables

    remedy = "store it as oid or text, or leave it out by a column list; else it is green only where a check proves it"
    return [
        Diagnosis(Level.WARNING, f"table {table.identifier}", table.borrowing, remedy)
        for table in live_tables(ledger)
        if table.borrowing
    ]
