"""Copy pieces of tables on the executors of a cluster: each task opens a session of its own on the snapshot of the cut.

The driver sends no password. Executors find the password where libpq looks on their own machine: in the file of
`PGPASSFILE`, in a service file, or in a variable that the machine or its manager sets.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING

from toolkit.capture.copy_workers import Copied, Report, Task, copy
from toolkit.lake.cluster import ask_executors, is_cluster
from toolkit.lake.executors import Delivery
from toolkit.lake.session import own_session
from toolkit.lake.spark_tasks import attempt_place, run_in_tasks, runs_once
from toolkit.source.connection import connect, passwords_in
from toolkit.source.slot import Cut, require_server, server_identity
from toolkit.source.snapshot_rows import reader
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import CdcError, ConfigError
from toolkit.values.installed_code import code_identity
from toolkit.values.modes import CopyOn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.files import FileTarget
    from toolkit.lake.opened import Lake
    from toolkit.values.lake_access import LakeAccess
    from toolkit.values.source_access import SourceAccess

_VARIABLE = "spark.executorEnv.PGPASSWORD"


def on_executors(source: SourceAccess, access: LakeAccess) -> bool:
    """Return whether executors read tables for copies."""
    return source.snapshot.on == CopyOn.EXECUTORS and is_cluster(access)


def require_connected(source: SourceAccess, access: LakeAccess) -> tuple[str, ...]:
    """Check that executors reach the same server as the driver, with a password that is not sent. Return their hosts.

    Each task of a copy checks the server again, because an executor may join later.

    Raises:
        ConfigError: the password would be sent.
        LakeError: an executor does not reach the server.
    """
    given = _without_password(source.config, access)
    with connect(given) as conn:
        server = server_identity(conn)
    delivery = Delivery(code_identity(), {})
    return ask_executors(own_session(access), partial(_examine, delivery, given, server))


class ExecutorCopier:
    """Runs one task at a time on an executor, as a job of Spark with one task."""

    def __init__(self, source: SourceAccess, lake: Lake, cut: Cut, target: FileTarget, report: Report) -> None:
        self._spark: SparkSession = lake.spark
        self._report = report
        delivery = Delivery(code_identity(), {})
        seconds, given = source.snapshot.lock_seconds, _without_password(source.config, lake.access)
        self._copy = partial(_copy, delivery, given, cut, target, seconds, runs_once(self._spark))

    def run(self, task: Task) -> Copied:
        """Run one task and wait for its end. Spark gives it to another executor if one is lost.

        Raises:
            CdcError: the task has failed as often as Spark tries it.
        """
        (copied,) = run_in_tasks(self._spark, [task], self._copy, "copying on an executor")
        self._report(sum(copied.rows.values()), sum(item.piece.bytes for item in task.items))
        return copied

    def stop(self) -> None:
        """Do nothing: Spark ends what it runs with its session."""


def _copy(
    delivery: Delivery, source: SourceConfig, cut: Cut, target: FileTarget, seconds: float, once: bool, task: Task
) -> Copied:
    """Copy one task; this runs on an executor. Another attempt at the same task writes another file."""
    delivery.require_same_code()
    own = task if once else task.at(attempt_place(task.place))
    with reader(source, cut) as conn:
        return copy(conn, cut, own, target, seconds, lambda _rows, _size: None)


def _examine(delivery: Delivery, source: SourceConfig, server: str) -> str | None:
    """Return why this executor does not reach the server, if so."""
    try:
        delivery.require_same_code()
        with connect(source) as conn:
            require_server(conn, server, "reading tables")
    except CdcError as error:
        return f"executor {socket.gethostname()}: {error}"
    return None


def _without_password(source: SourceConfig, access: LakeAccess) -> SourceConfig:
    """Return what executors connect with.

    Raises:
        ConfigError: it has a password.
    """
    found = passwords_in(source)
    if found or _VARIABLE in access.spark:
        where = f"{found[0]} of [source] conninfo" if found else f"{_VARIABLE} of [spark]"
        raise ConfigError(
            f'[snapshot] on = "executors" would send {where} to executors; leave it out, and give each executor the'
            " password in a file that PGPASSFILE names, or in a service file"
        )
    return source
