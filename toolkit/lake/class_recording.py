"""Make the archive of the JVM's classes that `class_archive` finds, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from toolkit.lake import pandas_on_demand, reads, session, table_commit
from toolkit.lake.class_archive import place
from toolkit.lake.java import find_java
from toolkit.lake.table_commit import Commit
from toolkit.values import progress
from toolkit.values.errors import JavaMissing
from toolkit.values.lake_access import LakeAccess, LakeConfig
from toolkit.values.log_setup import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logger(__name__)
_SECONDS = 300  # what the JVM may take to write the archive as it ends
_LEFT = 4 * _SECONDS  # seconds after which no process writes to an unfinished archive any more
_UNUSED = 90 * 86_400  # seconds after which an archive that no JVM has read is deleted
#: What a drain, a build and a check let Spark do.
_TYPICAL = (
    "CREATE NAMESPACE IF NOT EXISTS n",
    "CREATE TABLE n.t (id BIGINT, text STRING, at TIMESTAMP, cells ARRAY<STRING>) USING iceberg PARTITIONED BY"
    " (truncate(10, id))",
    "INSERT INTO n.t SELECT id, cast(id AS STRING), current_timestamp(), array('a', NULL) FROM range(100)",
    "MERGE INTO n.t AS t USING (SELECT id, max_by(text, at) AS text FROM n.t GROUP BY id) AS s ON t.id = s.id"
    " WHEN MATCHED AND s.id < 5 THEN DELETE WHEN MATCHED THEN UPDATE SET text = concat(s.text, 'x')"
    " WHEN NOT MATCHED THEN INSERT (id, text) VALUES (s.id, s.text)",
    "CREATE OR REPLACE TABLE n.u USING iceberg AS SELECT *, row_number() OVER (PARTITION BY id % 3 ORDER BY at) AS n,"
    " xxhash64(1L, concat(X'00', coalesce(cast(text AS BINARY), X''))) AS h, element_at(cells, 1) AS c FROM n.t",
    "ALTER TABLE n.u CREATE TAG x",
    "CREATE OR REPLACE VIEW n.v AS SELECT count(*) AS rows, sum(h % 7) AS h FROM n.u VERSION AS OF 'x' WHERE id > 3",
    "SELECT * FROM n.v",
    "SELECT * FROM n.t.snapshots",
)

#: The joins and functions of a fold. `p` are plans, which come from this process.
_FOLD = (
    "SELECT id, text FROM (SELECT t.id, max_by(named_struct('text', t.text, 'cells', transform(p.columns, (c, i) ->"
    " coalesce(element_at(t.cells, i + 1), c))), struct(t.at, t.id)).text AS text FROM n.t AS t JOIN p ON t.id = p.id"
    " WHERE t.id IN (3, 5) GROUP BY t.id)"
)


def prepare(access: LakeAccess) -> Path | None:
    """Download the jars that Spark needs for a lake, compare them with their hashes, and make the archive.

    The lake is not opened. Return the archive; None if this runtime cannot make one.

    Raises:
        JavaMissing: there is no Java that Spark can use.
        LakeError: Spark does not start, or a jar is not the one that this version is made for.
    """
    settings = session.spark_settings(access)
    with tempfile.TemporaryDirectory(prefix="cdc-classes-") as lake:
        empty = LakeConfig(work_dir=str(access.work_dir))  # which gets Spark's log, since an error names it
        session.own_session(LakeAccess(Path(lake), empty, _of_jars(settings)))
        session.stop_session()
    make_missing(settings)
    archive = place(find_java().parent.parent, settings)
    return archive if archive.is_file() else None


def make_missing(settings: Mapping[str, str]) -> Path | None:
    """Make the archive for this machine's Java runtime and the jars of the settings, and delete those no longer used.

    It takes about 20 seconds, once. Return the archive; None if there is one, or if this runtime cannot make one.
    """
    with suppress(JavaMissing, OSError, subprocess.TimeoutExpired):
        home = find_java().parent.parent
        target = place(home, settings)
        if not target.is_file() and (home / "lib" / "server" / "classes.jsa").is_file():
            with progress.stage("preparing Spark's next start"):
                return _make(target, settings)
    return None


def _of_jars(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if key.startswith("spark.jars.")}


def _make(target: Path, settings: Mapping[str, str]) -> Path | None:
    target.parent.mkdir(parents=True, exist_ok=True)
    for other in target.parent.glob("classes-*.jsa"):
        if other.stat().st_atime < time.time() - _UNUSED:
            other.unlink(missing_ok=True)
    for other in target.parent.glob(".classes-*.jsa"):  # a killed run may have left it
        if other.stat().st_mtime < time.time() - _LEFT:
            other.unlink(missing_ok=True)
    partial = target.with_name(f".{target.stem}.{os.getpid()}.jsa")
    try:
        said = _run(str(partial), _of_jars(settings))
        if not partial.is_file():
            _log.warning("no archive of Spark's classes", extra={"reason": said or "the JVM wrote none"})
            return None
        partial.replace(target)
        return target
    finally:
        partial.unlink(missing_ok=True)


def _run(archive: str, settings: Mapping[str, str]) -> str:
    """Run this module in a process of its own, of which nothing remains. Return the last line of its errors."""
    pipe = subprocess.PIPE
    # A group of its own, because a JVM that loses its Python would still write the archive.
    with (
        tempfile.TemporaryDirectory(prefix="cdc-classes-") as lake,
        subprocess.Popen(
            [sys.executable, "-m", "toolkit.lake.class_recording", archive, lake],
            stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            _, errors = process.communicate(json.dumps(settings), timeout=2 * _SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return errors.strip().rpartition("\n")[2]


def record(archive: str, lake: str, settings: Mapping[str, str]) -> None:
    """Run typical statements on a lake of its own, in a JVM that writes the archive as it ends."""
    pandas_on_demand.enable()
    option = {"spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={archive}"', "spark.master": "local[1]"}
    # Not a `Config`, which reads the environment: these statements must not run on the user's lake.
    access = LakeAccess(Path(lake), LakeConfig(), {**settings, **option})
    spark = session.own_session(access)
    for statement in _TYPICAL:
        spark.sql(statement).collect()
    spark.sparkContext.parallelize([0], 1).map(str).collect()
    _build_small(spark, access)
    session.stop_session(seconds=_SECONDS)


def _build_small(spark: SparkSession, access: LakeAccess) -> None:
    """Fold and write as a build of small tables does: a frame of this process, its rows as Arrow, and a commit."""
    plans = pa.table({"id": [3, 5], "columns": [["a"], ["b", None]]})
    pandas_on_demand.create_frame(spark, plans).createOrReplaceTempView("p")
    rows = spark.sql(_FOLD).toArrow()
    columns = [("id", "BIGINT"), ("text", "STRING")]
    made = Commit({"format-version": "3"}, {"cdc.lsn": "0/0"}, "x", None)
    java = table_commit.Java(spark)
    table_commit.replace_table(java, access, "n.w", columns, rows, made)
    table_commit.overwrite(java, access, "n.w", rows, replace(made, tag="y", since=reads.snapshot_id(access, "n.w")))


if __name__ == "__main__":
    record(sys.argv[1], sys.argv[2], json.load(sys.stdin))
