"""Offer what the commands do as methods of one object. `toolkit.open` makes it; no other module is public.

Each call that writes holds the lease of the lake and, where it reads the source's slot, that of the slot. Errors are
those of `toolkit.values.errors`: each names the thing, what was found and what to do next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from toolkit.values.errors import BuildFailed
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn, parse_moment

if TYPE_CHECKING:
    import pandas as pd
    from pyiceberg.table import DataScan
    from pyspark.sql import SparkSession

    from toolkit.build.dbt_run import BuildResult
    from toolkit.capture.copy import SnapshotResult
    from toolkit.capture.drain_loop import DrainResult
    from toolkit.capture.initialise import InitResult
    from toolkit.capture.repair_scope import Scope
    from toolkit.history.rows_at_lsn import FoundRows
    from toolkit.history.versions import VersionInfo
    from toolkit.lake.opened import Lake
    from toolkit.lake.published_tables import PublishedTable
    from toolkit.lake.upkeep import Upkeep
    from toolkit.ops.diagnosis import Diagnosis
    from toolkit.ops.erased_tables import ErasedTable
    from toolkit.ops.status_report import Status
    from toolkit.quality.report import CheckReport
    from toolkit.quality.trend import Episode
    from toolkit.values.config import Config
    from toolkit.values.source_access import SourceAccess

#: An LSN, a time with a zone, or a text of either.
Moment = Lsn | datetime | str
_T = TypeVar("_T")
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The results of the stages of a run. `heal` is None unless it was asked for."""

    drain: DrainResult
    heal: SnapshotResult | None
    build: BuildResult
    check: CheckReport


class Toolkit:
    """One source and its lake. Creating it connects to nothing; each call reads again."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @staticmethod
    def draw_charts() -> None:
        """Let charts of Altair be drawn as pictures from now on. JupyterLab and pages show them without a network."""
        from toolkit.ops.charts import draw_as_pictures

        draw_as_pictures()

    @property
    def source(self) -> SourceAccess:
        """Return what is captured, and how the source is read."""
        return self.config.source_access

    @property
    def lake(self) -> Lake:
        """Open the lake: one reading of the raw log, and Spark when it is first needed."""
        from toolkit.lake.opened import Lake

        return Lake(self.config.lake_access, rules=self.config.capture_rules)

    def lsn(self, moment: Moment) -> Lsn:
        """Return the LSN that is meant: a time with a zone is looked up in the commits of the log.

        Raises:
            ConfigError: the text is neither an LSN nor a time with a zone, or the log does not reach the time.
        """
        from toolkit.history import commit_times

        if isinstance(moment, str):
            moment = parse_moment(moment)
        return commit_times.lsn_at(self.lake, moment) if isinstance(moment, datetime) else moment

    def _lsn(self, moment: Moment | None) -> Lsn | None:
        return None if moment is None else self.lsn(moment)

    # What moves data and proves it.

    def init(self, *, new_generation: bool = False, strict: bool = False, new_key: bool = False) -> InitResult:
        """Install capture on the source, create the slot and copy the tables; `strict` refuses to leave any out."""
        from toolkit.capture import initialise
        from toolkit.capture.runner import only_runner

        with only_runner(self.lake, self.config.source):
            return initialise.init(
                self.source,
                self.lake,
                self.config.dbt_project,
                new_generation=new_generation,
                strict=strict,
                new_key=new_key,
            )

    def uninstall(self) -> bool:
        """Remove what `init` created on the source, and return whether there was anything. The lake stays."""
        from toolkit.capture import initialise
        from toolkit.capture.runner import only_runner

        with only_runner(self.lake, self.config.source):
            return initialise.uninstall(self.source, self.lake)

    def drain(self, *, upto: Lsn | None = None, max_changes: int | None = None) -> DrainResult:
        """Drain the source into the raw log: to `upto`, or to the WAL's flush position now."""
        from toolkit.capture import slot_drain
        from toolkit.capture.runner import only_runner

        with only_runner(self.lake, self.config.source):
            return slot_drain.drain(self.source, self.lake, upto=upto, max_changes=max_changes)

    def skip(self, at: Lsn) -> DrainResult:
        """Drain past the transaction with the unreadable change at this LSN; its tables become stale."""
        from toolkit.capture import skipped_transaction
        from toolkit.capture.runner import only_runner

        with only_runner(self.lake, self.config.source):
            return skipped_transaction.skip(self.source, self.lake, at)

    def build(self, *, as_of: Moment | None = None, dbt_args: Sequence[str] = ()) -> BuildResult:
        """Build `current` and `history`, or the tables as of an LSN or time in a schema of their own."""
        from toolkit.build import dbt_run
        from toolkit.lake.lease import hold_lease

        with hold_lease(self.config.lake_access):
            return dbt_run.build(self.lake, self.config.dbt_project, as_of=self._lsn(as_of), dbt_args=dbt_args)

    def check(self, *tables: str, full: bool = False) -> CheckReport:
        """Prove tables, or all, at one exact LSN and publish what is proven; `full` compares every row."""
        from toolkit.capture.runner import only_runner

        with only_runner(self.lake, self.config.source):
            return self._check(tables, full=full)

    def _begin(self) -> None:
        """Import Great Expectations and start Spark in the background, which a check needs later."""
        from toolkit.lake import lake_catalog, reads, session
        from toolkit.values.libraries import Library, preload

        access = self.config.lake_access
        preload(Library.GREAT_EXPECTATIONS, after=lake_catalog.modules_of(access))
        if reads.metadata_location(access, access.names.events) is not None:  # without a log, a drain fails at once
            session.begin(access)

    def _check(self, tables: Sequence[str], *, full: bool = False, failed_before: Sequence[str] = ()) -> CheckReport:
        from toolkit.build import dbt_run
        from toolkit.capture import slot_drain
        from toolkit.quality import parity

        self._begin()
        own_failed = [*failed_before]

        def build(*, select: Sequence[str] | None = None) -> BuildResult:
            try:
                built = dbt_run.build(self.lake, self.config.dbt_project, select=select)
            except BuildFailed as error:
                own_failed.extend(getattr(error.result, "own_failed", ()))
                raise
            own_failed.extend(built.own_failed)
            return built

        return parity.check(
            self.source,
            self.lake,
            self.config.check,
            tables,
            drain=partial(slot_drain.drain, self.source, self.lake),
            build=build,
            full=full,
            threads=self.config.dbt.threads,
            own_failed=own_failed,
        )

    def run(self, *, heal: bool = False, finished: Callable[[str, Any], object] | None = None) -> RunResult:
        """Drain, build and check; with `heal`, repair stale tables too, within `[snapshot] heal_mb`.

        `finished` is called with the name and the result of each stage before the check as it ends. A table that cannot
        be built fails in the check, which proves the others.
        """
        from toolkit.build import dbt_run
        from toolkit.capture import copy, slot_drain
        from toolkit.capture.runner import only_runner

        failed: list[BuildFailed] = []

        def build() -> BuildResult:
            try:
                return dbt_run.build(self.lake, self.config.dbt_project)
            except BuildFailed as error:
                if error.result is None:
                    raise
                failed.append(error)
                result: BuildResult = error.result
                return result

        with only_runner(self.lake, self.config.source):
            self._begin()
            drained = _timed("drain", lambda: slot_drain.drain(self.source, self.lake), finished)
            healed = _timed("heal", lambda: copy.repair_stale(self.source, self.lake), finished) if heal else None
            built = _timed("build", build, finished)
            checked = _timed("check", lambda: self._check((), failed_before=built.own_failed))
            if failed and checked.green:  # a check does not ask for a table that could not be dropped
                raise failed[0]
            return RunResult(drained, healed, built, checked)

    def repair(self, *tables: str, scope: Scope | None = None) -> SnapshotResult:
        """Copy stale tables again at a new exact LSN: the named ones, or all; of one table, the rows of a scope."""
        from toolkit.capture import copy, repair_scope
        from toolkit.capture.runner import only_runner

        with only_runner(self.lake, self.config.source):
            return copy.repair(self.source, self.lake, tables, scope=scope or repair_scope.WHOLE)

    def erase(self, *tables: str) -> tuple[ErasedTable, ...]:
        """Erase what the log has of tables before their newest proven copy; of dropped tables, everything."""
        from toolkit.lake.lease import hold_lease
        from toolkit.ops import erased_tables

        with hold_lease(self.config.lake_access):
            return erased_tables.erase(self.lake, tables)

    def maintain(self) -> tuple[Upkeep, ...]:
        """Compact the lake, delete erased rows, and expire table snapshots and tags."""
        from toolkit.lake.lease import hold_lease
        from toolkit.ops import maintenance

        with hold_lease(self.config.lake_access):
            return maintenance.maintain(self.lake)

    def status(self) -> Status:
        """Return the source, the positions, the last check and the state of each table."""
        from toolkit.ops import status_report

        return status_report.status(self.config)

    def doctor(self) -> tuple[Diagnosis, ...]:
        """List everything that is or will go wrong, each with its remedy."""
        from toolkit.ops import diagnosis

        return diagnosis.doctor(self.config)

    # What was, by LSN. No call needs the source; `rows` and `at_one_lsn` alone start a JVM.

    def versions(self, table: str) -> list[VersionInfo]:
        """List the schema versions of a table, each with the DDL that made it."""
        from toolkit.history import versions

        return versions.versions(self.lake.ledger, table)

    def versions_frame(self, table: str) -> pd.DataFrame:
        """Return the schema versions of a table as a frame, one row a version."""
        from toolkit.history import versions

        return versions.versions_frame(self.lake.ledger, table)

    def shape(self, table: str, as_of: Moment | None = None) -> VersionInfo:
        """Return the schema version that is valid at an LSN or time; the newest without one."""
        from toolkit.history import versions

        return versions.show(self.lake.ledger, table, self._lsn(as_of))

    def shape_frame(self, table: str, as_of: Moment | None = None) -> pd.DataFrame:
        """Return the columns of that version as a frame, one row a column."""
        from toolkit.history import versions

        return versions.shape_frame(self.lake.ledger, table, self._lsn(as_of))

    def column_frame(self, table: str, column: str | None = None) -> pd.DataFrame:
        """Return the life of a column, or of all, as a frame: one row a time with one name, type and declaration."""
        from toolkit.history import column_life

        return column_life.explain_frame(self.lake.ledger, table, column)

    def batches_frame(self) -> pd.DataFrame:
        """Return the committed batches as a frame, with their WAL, changes and waits."""
        from toolkit.history import commit_times

        return commit_times.batches_frame(self.lake.ledger)

    def rows(
        self,
        table: str,
        as_of: Moment | None = None,
        key: Mapping[str, str] | None = None,
        *,
        limit: int | None = None,
    ) -> FoundRows:
        """Read rows as PostgreSQL prints them: the current ones, those at an LSN or time, or all versions of a key."""
        from toolkit.history import rows_at_lsn

        return rows_at_lsn.read_rows(self.lake, table, self._lsn(as_of), key, limit=limit)

    def at_one_lsn(self, spark: SparkSession, *tables: str) -> Lsn:
        """Make temporary views `<schema>__<table>` of tables, or all, at one proven LSN. Return that LSN."""
        from toolkit.history import rows_at_lsn

        return rows_at_lsn.at_one_lsn(self.lake, spark, tables)

    # What checks have found. No call starts a JVM.

    def last_report(self) -> dict[str, Any]:
        """Return the report of the last check, as `parity.json` has it.

        Raises:
            ConfigError: there was no check yet.
        """
        from toolkit.quality import expectations

        return expectations.last_report(self.config.lake_access)

    def proofs(self) -> list[dict[str, Any]]:
        """Return for each table the LSN and time of its proof and of the last full proof, and the last result."""
        from toolkit.quality import trend

        return trend.proven(self.config.lake_access)

    def check_results(self) -> list[dict[str, Any]]:
        """Return every result of every check, oldest first."""
        from toolkit.quality import trend

        return trend.results(self.config.lake_access)

    def differing_rows(self) -> list[dict[str, Any]]:
        """Count the differing rows of each check, oldest first: checked_at, lsn, table, class, rows."""
        from toolkit.quality import trend

        return trend.differing(self.config.lake_access)

    def unproven_periods(self) -> list[Episode]:
        """Return the periods in which a table was not proven, ordered by their start."""
        from toolkit.quality import trend

        return trend.episodes(self.config.lake_access)

    # What is published, for readers other than Spark. No call starts a JVM.

    def published(self) -> tuple[PublishedTable, ...]:
        """List the published tables: LSN, tag, table snapshot, metadata file and columns of each."""
        from toolkit.lake import published_tables

        return published_tables.published_tables(self.config.lake_access)

    def scan(self, table: str) -> DataScan:
        """Return pyiceberg's scan of a published table at its proof, to filter, select and read."""
        from toolkit.lake import published_tables

        return published_tables.scan_published(self.config.lake_access, table)

    def duckdb_script(self) -> str:
        """Write SQL that makes the views of `published` in DuckDB."""
        from toolkit.lake import published_tables

        return published_tables.duckdb_script(self.config.lake_access)


def _timed(stage: str, work: Callable[[], _T], finished: Callable[[str, Any], object] | None = None) -> _T:
    """Do one stage of a run, and log what it came to and how long it took."""
    started = time.monotonic()
    done = work()
    values = {f.name: getattr(done, f.name) for f in fields(done)} if is_dataclass(done) else {}
    shown = {name: str(value) if isinstance(value, Lsn) else value for name, value in values.items()}
    figures = {name: value for name, value in shown.items() if isinstance(value, str | int | float)}
    seconds = round(time.monotonic() - started, 3)
    _log.info("stage finished", extra={"stage": stage, "seconds": seconds, **figures})
    if finished is not None:
        finished(stage, done)
    return done
