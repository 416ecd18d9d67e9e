"""Write what `cdc status` shows as metrics, in the text format of Prometheus.

The file is for a collector that reads files of a folder, such as the textfile collector of Prometheus's node exporter.
Times are absolute, so that an age is right at any time after the file was written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from toolkit.rawlog.states import State
from toolkit.values.errors import ConfigError
from toolkit.values.whole_file import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from toolkit.ops.status_report import Status
    from toolkit.values.lake_access import LakeAccess

_MIB = 1 << 20
Samples = Iterable[tuple[str, float | None]]


@dataclass(frozen=True, slots=True)
class Gauge:
    """One metric: its samples, each with the value of `label`, or a single one. A sample that is None is left out."""

    name: str
    meaning: str
    read: Callable[[Status], float | Samples | None]
    label: str = ""

    def family(self, read: float | Samples | None, where: dict[str, str]) -> Metric:
        """Return it with these samples. `where` are the labels of all metrics."""
        values = dict[str, float]()
        for label, value in [("", read)] if read is None or isinstance(read, int | float) else read:
            if value is not None:  # a collector refuses a file with two samples of one table: the worse one counts
                values[label] = min(value, values.get(label, value))
        found = GaugeMetricFamily(self.name, self.meaning, labels=[*where, self.label] if self.label else [*where])
        for label, value in values.items():
            found.add_metric([*where.values(), label] if self.label else [*where.values()], value)
        return found


def _ago(seconds: int | None) -> float | None:
    return None if seconds is None else round(time.time()) - seconds


_OK = Gauge("cdc_ok", "1 if nothing is wrong, as with exit code 0 of this command.", lambda s: not s.failing)
_WRITTEN = Gauge("cdc_status_time_seconds", "Time at which these metrics were written.", lambda _: round(time.time()))
GAUGES = (
    _OK,
    _WRITTEN,
    Gauge("cdc_source_ok", "1 if the source can be read and drained.", lambda s: s.problem is None),
    Gauge("cdc_lake_ok", "1 if the lake can be read and written.", lambda s: s.lake is None),
    Gauge("cdc_alerts", "Number of alerts.", lambda s: len(s.alerts)),
    Gauge("cdc_committed_lsn", "LSN up to which the log is complete, as a number.", lambda s: s.committed_lsn),
    Gauge(
        "cdc_applied_lsn",
        "LSN up to which builds have applied the log to every table, as a number.",
        lambda s: s.applied_lsn,
    ),
    Gauge("cdc_published_lsn", "Oldest LSN of the published tables, as a number.", lambda s: s.published_lsn),
    Gauge("cdc_lag_bytes", "Bytes of WAL that the source has and the log does not.", lambda s: s.lag_bytes),
    Gauge(
        "cdc_slot_retained_bytes",
        "Bytes of WAL that the server keeps for the slot.",
        lambda s: s.slot.retained if s.slot else None,
    ),
    Gauge(
        "cdc_slot_safe_wal_bytes",
        "Bytes of WAL after which the slot is lost, if there is a limit.",
        lambda s: s.slot.safe_wal_size if s.slot else None,
    ),
    Gauge(
        "cdc_last_check_time_seconds",
        "Time of the last check.",
        lambda s: s.last_check.at.timestamp() if s.last_check else None,
    ),
    Gauge(
        "cdc_last_check_ok",
        "1 if the last check found every table identical.",
        lambda s: s.last_check.green if s.last_check else None,
    ),
    Gauge(
        "cdc_last_run_time_seconds",
        "Time at which a command last ended.",
        lambda s: ((run.command, datetime.fromisoformat(run.at).timestamp()) for run in s.last_runs),
        "command",
    ),
    Gauge(
        "cdc_last_run_exit_code",
        "Exit code of the last end of a command.",
        lambda s: ((run.command, run.exit_code) for run in s.last_runs),
        "command",
    ),
    Gauge(
        "cdc_free_bytes",
        "Free space of a folder that a run writes to.",
        lambda s: ((folder, free * _MIB) for folder, free in s.free_mb.items()),
        "folder",
    ),
    Gauge("cdc_not_captured_tables", "Number of tables to capture that are not.", lambda s: len(s.not_captured)),
    Gauge(
        "cdc_table_ok",
        "1 if every row of the table is known, 0 if it is stale.",
        lambda s: ((t.table, t.state == State.OK) for t in s.tables),
        "table",
    ),
    Gauge(
        "cdc_table_proven_lsn",
        "Newest LSN at which a check found every row of the table equal, as a number.",
        lambda s: ((t.table, t.proven_lsn) for t in s.tables),
        "table",
    ),
    Gauge(
        "cdc_table_proven_time_seconds",
        "Time of the newest check that found the table identical.",
        lambda s: ((t.table, _ago(t.checked_seconds)) for t in s.tables),
        "table",
    ),
    Gauge(
        "cdc_table_full_proof_time_seconds",
        "Time of the newest check that compared every row of the table, all equal.",
        lambda s: ((t.table, _ago(t.proven_seconds)) for t in s.tables),
        "table",
    ),
)


@dataclass(frozen=True, slots=True)
class _Families:
    families: tuple[Metric, ...]

    def collect(self) -> tuple[Metric, ...]:
        return self.families


def write(path: Path, status: Status | None, access: LakeAccess) -> None:
    """Replace the file by the metrics of `status`. All have the labels `lake`, its warehouse, and `prefix`.

    Without a status, because reading it failed, `cdc_ok` is 0, and all that is not known is left out.

    Raises:
        ConfigError: the file cannot be written, or is no regular file.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"--metrics {path}: it is no regular file, and would be replaced by one; name another file")
    where = {"lake": access.warehouse, "prefix": access.names.prefix}
    families: tuple[Metric, ...]
    if status is None:
        families = (_OK.family(0, where), _WRITTEN.family(round(time.time()), where))
    else:
        families = tuple(gauge.family(gauge.read(status), where) for gauge in GAUGES)
    try:
        # It has no rows, and the collector of a machine runs as another user. A link stays.
        write_whole(path.resolve(), generate_latest(_Families(families)), mode=0o644)
    except OSError as error:
        raise ConfigError(f"--metrics {path}: {error.strerror}; name a file that can be written") from None
