"""Do what the commands do with a configuration, without their leases and their output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from tests.support_ledger import lake_of, opened
from toolkit.build import dbt_run, models
from toolkit.build.dbt_run import BuildResult
from toolkit.capture import copy, initialise, row_forms, runner, skipped_transaction, slot_drain
from toolkit.capture.copy import SnapshotResult
from toolkit.capture.drain_loop import DrainResult
from toolkit.capture.initialise import InitResult
from toolkit.lake.upkeep import Upkeep
from toolkit.ops import erased_tables, maintenance
from toolkit.ops.erased_tables import ErasedTable
from toolkit.quality import dual_capture, parity, published, second_server
from toolkit.quality.dual_capture import AuditReport
from toolkit.quality.published import Published
from toolkit.quality.report import CheckReport
from toolkit.source import catalog, connection, snapshot_rows
from toolkit.source.slot import Cut
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn


def init(config: Config, **more: Any) -> InitResult:
    return initialise.init(*opened(config), config.dbt_project, **more)


def uninstall(config: Config) -> None:
    initialise.uninstall(*opened(config))


def plan_sql(config: Config) -> str:
    return initialise.plan_sql(config.source_access)


def drain(config: Config, upto: Lsn | None = None, max_changes: int | None = None, **more: Any) -> DrainResult:
    return slot_drain.drain(*opened(config), upto, max_changes, **more)


def skip(config: Config, at: Lsn) -> DrainResult:
    return skipped_transaction.skip(*opened(config), at)


def repair(config: Config, tables: Sequence[str] = (), **more: Any) -> SnapshotResult:
    return copy.repair(*opened(config), tables, **more)


def repair_stale(config: Config) -> SnapshotResult | None:
    return copy.repair_stale(*opened(config))


def copy_tables(config: Config, cut: Cut, tables: Sequence[str] | None = None, **more: Any) -> SnapshotResult:
    """Copy under a cut that is open already, before which nothing was altered."""
    source, lake = opened(config)
    with snapshot_rows.reader(source.config, cut) as conn:
        forms = row_forms.Forms.read(conn, catalog.snapshot_json(conn))
    return copy.copy_tables(source, lake, cut, forms, tables, **more)


def missing_baselines(config: Config) -> tuple[str, ...]:
    with connection.connect(config.source) as conn:
        return copy.missing_baselines(conn, lake_of(config))


@contextmanager
def only_runner(config: Config, *, source: bool = True) -> Iterator[None]:
    with runner.only_runner(lake_of(config), config.source if source else None):
        yield


def build(config: Config, **more: Any) -> BuildResult:
    return dbt_run.build(lake_of(config), config.dbt_project, **more)


def sync(config: Config, **more: Any) -> models.SyncResult:
    return models.sync(lake_of(config), config.dbt_project, **more)


def check(
    config: Config,
    tables: Sequence[str] = (),
    *,
    drain: Callable[..., object] = drain,
    build: Callable[..., object] = build,
    full: bool = False,
) -> CheckReport:
    return parity.check(
        *opened(config), config.check, tables, drain=partial(drain, config), build=partial(build, config), full=full,
        threads=config.dbt.threads
    )  # fmt: skip


def compare(
    config: Config,
    tables: Sequence[str] = (),
    *,
    drain: Callable[..., object] = drain,
    build: Callable[..., object] = build,
    **more: Any,
) -> CheckReport:
    return parity.compare(
        *opened(config), config.check, tables, drain=partial(drain, config), build=partial(build, config), **more
    )


def publish(config: Config, report: CheckReport, *, complete: bool = True, at: datetime | None = None) -> Published:
    return published.publish(
        lake_of(config), config.check, report, complete=complete, at=at, threads=config.dbt.threads
    )


def against(config: Config, conninfo: str, tables: Sequence[str] = ()) -> CheckReport:
    return second_server.against(config.source_access, config.check, conninfo, tables)


def audit(config: Config, tables: Sequence[str] = ()) -> AuditReport:
    return dual_capture.audit(lake_of(config), tables)


def erase(config: Config, *tables: str) -> tuple[ErasedTable, ...]:
    return erased_tables.erase(lake_of(config), tables)


def maintain(config: Config) -> tuple[Upkeep, ...]:
    return maintenance.maintain(lake_of(config))
