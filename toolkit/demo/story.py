"""Run `cdc demo`: the whole pipeline on an embedded PostgreSQL, with the real command in each stage.

Two tables of pgbench and a small shop are captured under load and through DDL, rebuilt and proven. Then they are
damaged on purpose. The damage is found and repaired, and the tables are proven again. Afterwards one folder has all
results, and the server is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.demo import lake_sections, sql_prompt, workload
from toolkit.values import progress
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.config import Config, load
from toolkit.values.errors import CdcError, ConfigError, NotProven
from toolkit.values.libraries import Library, preload
from toolkit.values.lsn import Lsn
from toolkit.values.names import lake_columns, lake_table, quote_spark
from toolkit.values.outcome import CheckStatus
from toolkit.values.process_env import environment

if TYPE_CHECKING:
    from toolkit.demo.server import EmbeddedServer
    from toolkit.lake.opened import Lake
    from toolkit.quality.report import CheckReport

Echo = Callable[[str], object]

_MARKER = ".cdc-demo"  # a file in folders that the demo made and may empty
_DATABASE = "shop"
_CATALOG = "catalog"  # the database of the catalog, with `--cluster`
_FAULT_TABLE, _FAULT_COLUMN = "customers", "name"
_FAULT_TEXT = "no one ever wrote this"
_AS_OF_TABLE = "customers"
_AS_OF_AFTER = 2  # schema changes before the cut at which the table is later rebuilt
_SESSIONS, _RATE = 3, 40.0  # concurrent sessions; transactions per second and session
_BETWEEN = 40  # the fewest transactions between two schema changes


@dataclass(slots=True)
class DemoReport:
    """The content of `report.json`."""

    checks: list[dict[str, Any]] = field(default_factory=list)  # lsn, status, rows
    fault_found: bool = False
    healed: bool = False
    as_of_equal: bool = False
    ddl_events: int = 0
    changes: int = 0
    seconds: float = 0.0
    postgres: int = 0

    @property
    def proven(self) -> bool:
        """Return whether the demo had the expected results."""
        found = [check["status"] for check in self.checks]
        expected = [CheckStatus.IDENTICAL, CheckStatus.DIFFERENT, CheckStatus.IDENTICAL]
        return self.fault_found and self.healed and self.as_of_equal and found == expected


def run(directory: Path | None = None, major: int = 16, echo: Echo = print, *, cluster: bool = False) -> int:
    """Run the demo in `directory` (default `cdc-demo`), which is created, or emptied if an earlier demo made it.

    With `cluster` the lake is in an object store with a catalog in PostgreSQL, and two executors do its work.

    Returns:
        0 if everything was proven, or else 3.

    Raises:
        ConfigError: the folder has other content.
        CdcError: a stage failed; its message says which.
    """
    folder = _prepare(directory or Path("cdc-demo"))
    with _only_own_environment():
        try:
            report = _Demo(folder, major, _Story(echo), cluster=cluster).play()
        finally:
            _stop_spark()
    return 0 if report.proven else NotProven.exit_code


@dataclass(frozen=True, slots=True)
class _Truth:
    """The result of SELECT on the source at `lsn`, as PostgreSQL text in column order."""

    lsn: Lsn
    columns: tuple[str, ...]
    rows: list[tuple[str | None, ...]]


class _Story:
    """Report progress: a line for each finished step, and on a terminal also the running stage."""

    def __init__(self, echo: Echo) -> None:
        self.echo = echo
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[list[str]]:
        """Report one step. The caller appends its results to the list."""
        facts: list[str] = []
        with progress.stage(title):
            yield facts
        self.echo(f"{self.seconds:6.1f} s  {title}" + (f": {'; '.join(facts)}" if facts else ""))


class _Demo:
    def __init__(self, folder: Path, major: int, story: _Story, *, cluster: bool) -> None:
        self.folder = folder
        self.cluster = cluster
        self.major = major
        self.story = story
        self.report = DemoReport(postgres=major)
        self.config: Config

    @property
    def lake(self) -> Lake:
        from toolkit.lake.opened import Lake

        return Lake(self.config.lake_access, rules=self.config.capture_rules)

    def play(self) -> DemoReport:
        from toolkit.demo.server import EmbeddedServer
        from toolkit.lake import lake_catalog

        self.story.echo(f"cdc demo: everything is kept in {self.folder}")
        with contextlib.ExitStack() as stack:
            with self.story.step(f"PostgreSQL {self.major} started, with pgbench's tables and a small shop"):
                server = stack.enter_context(EmbeddedServer(None, self.major))
                self._create(server)
            self.config = _configure(self.folder, server, self._lake(server, stack))
            catalog = lake_catalog.modules_of(self.config.lake_access)
            preload(Library.DBT, Library.GREAT_EXPECTATIONS, after=catalog)  # while Spark starts
            self._init()
            truth = self._load(server)
            self._build_and_check()
            self._fault_and_repair()
            self._as_of(truth)
            notebook = self._notebook()
            self._count()
        self.report.seconds = round(self.story.seconds, 1)
        text = json.dumps(asdict(self.report), indent=2)
        (self.folder / "report.json").write_text(text + "\n", encoding="utf-8")
        self._places(notebook)
        return self.report

    def _lake(self, server: EmbeddedServer, stack: contextlib.ExitStack) -> str:
        """Return the sections of lake and Spark: on this machine's disk, or on servers that end with the stack."""
        if not self.cluster:
            return lake_sections.LOCAL
        from toolkit.demo import loopback

        with self.story.step("an S3 server, a catalog in PostgreSQL, and Spark's master with two workers started"):
            store = stack.enter_context(loopback.object_store(self.folder))
            spark = stack.enter_context(loopback.standalone(self.folder))
            stack.enter_context(environment(store.environment))
            stack.callback(_stop_spark)  # before the servers end
            return lake_sections.on_servers(server, _CATALOG, store, spark)

    # -- source --------------------------------------------------------------------------------------------------------

    def _create(self, server: EmbeddedServer) -> None:
        import psycopg

        with psycopg.connect(server.conninfo(), autocommit=True) as conn:
            for name in (_DATABASE, _CATALOG)[: 1 + self.cluster]:
                conn.execute(f"create database {name}")
        workload.create_pgbench(server, _DATABASE)
        with psycopg.connect(server.conninfo(_DATABASE), autocommit=True) as conn:
            workload.create_shop(conn)

    def _init(self) -> None:
        from toolkit.capture import initialise

        with self.story.step("cdc init: event triggers, publication, slot and first snapshot") as facts:
            done = initialise.init(self.config.source_access, self.lake, self.config.dbt_project)
            facts.append(f"{sum(done.rows.values()):,} rows of {len(done.rows)} tables at {done.lsn}")

    def _load(self, server: EmbeddedServer) -> _Truth:
        """Run traffic, schema changes and drains at the same time. Return the source's rows at one moment in it."""
        import psycopg

        truth = None
        conninfo = server.conninfo(_DATABASE)
        traffic = workload.Load(conninfo, sessions=_SESSIONS, rate=_RATE, pgbench=True)
        with traffic, psycopg.connect(conninfo, autocommit=True) as conn:
            for number, step in enumerate(workload.ddl_story()):
                if number == _AS_OF_AFTER:
                    with self.story.step(f"what SELECT shows of {_AS_OF_TABLE} now is kept for later") as facts:
                        truth = _read_truth(self.config.source, cut_seconds=self.config.check.cut_seconds)
                        facts.append(f"{len(truth.rows)} rows at {truth.lsn}")
                with self.story.step(f"under load: {step.title}, then cdc drain") as facts:
                    _wait_for(traffic, traffic.counts.committed + _BETWEEN)
                    workload.run_step(conn, step, traffic.names)
                    facts.append(self._drain())
            counts = traffic.stop()
        with self.story.step(f"the load ends after {counts.committed} transactions, the rest is drained") as facts:
            facts.append(self._drain())
        assert truth is not None
        return truth

    def _drain(self) -> str:
        from toolkit.capture import slot_drain

        done = slot_drain.drain(self.config.source_access, self.lake)
        return f"{done.changes:,} changes to {done.committed_lsn}"

    # -- lake ----------------------------------------------------------------------------------------------------------

    def _build_and_check(self) -> None:
        from toolkit.build import dbt_run

        with self.story.step("cdc build: current state and history of every table") as facts:
            done = dbt_run.build(self.lake, self.config.dbt_project)
            facts.append(f"at {done.lsn}")
        with self.story.step("cdc check: both sides at one exact LSN") as facts:
            facts.append(self._summary(self._check()))

    def _check(self) -> CheckReport:
        from toolkit.build import dbt_run
        from toolkit.capture import slot_drain
        from toolkit.quality import parity

        found = parity.check(
            self.config.source_access,
            self.lake,
            self.config.check,
            drain=partial(slot_drain.drain, self.config.source_access, self.lake),
            build=partial(dbt_run.build, self.lake, self.config.dbt_project),
            threads=self.config.dbt.threads,
        )
        statuses = {t.status for t in found.tables}
        status = next(s for s in CheckStatus if s in statuses and (found.green or s != CheckStatus.IDENTICAL))
        rows = sum(t.rows or 0 for t in found.tables)
        self.report.checks.append({"lsn": str(found.lsn) if found.lsn else None, "status": status, "rows": rows})
        return found

    @staticmethod
    def _summary(found: CheckReport) -> str:
        if found.green:
            rows = sum(t.rows or 0 for t in found.tables)
            return f"identical, {rows:,} rows of {len(found.tables)} tables at {found.lsn}"
        wrong = [t for t in found.tables if t.status != CheckStatus.IDENTICAL]
        return "; ".join(f"{t.table} {t.status}" + (f" ({t.reason})" if t.reason else "") for t in wrong)

    def _fault_and_repair(self) -> None:
        from toolkit.build import dbt_run

        name = lake_table("public", _FAULT_TABLE)
        with self.story.step("a fault is planted by hand in the lake") as facts:
            key = self._plant(name)
            facts.append(f"{self.config.lake.names.current}.{name}, {_FAULT_COLUMN} of id {key}")
        with self.story.step("cdc check finds it") as facts:
            found = self._check()
            self.report.fault_found = _names_fault(found, key)
            facts.append(self._summary(found))
        with self.story.step("repaired: the table is built again from the raw log"):
            dbt_run.build(self.lake, self.config.dbt_project, select=(name,), dbt_args=("--full-refresh",))
        with self.story.step("cdc check again") as facts:
            found = self._check()
            self.report.healed = found.green
            facts.append(self._summary(found))

    def _plant(self, name: str) -> int:
        from toolkit.lake.session import own_session

        spark = own_session(self.config.lake_access)
        key = int(spark.sql(f"SELECT max(id) FROM {self.config.lake.names.current}.{name}").first()[0])  # type: ignore[index]
        spark.sql(
            f"UPDATE {self.config.lake.names.current}.{name} SET {_FAULT_COLUMN} = '{_FAULT_TEXT}' WHERE id = {key}"
        )
        return key

    def _as_of(self, truth: _Truth) -> None:
        from toolkit.build import dbt_run

        with self.story.step(f"{_AS_OF_TABLE} is rebuilt as of {truth.lsn}") as facts:
            dbt_run.build(
                self.lake, self.config.dbt_project, as_of=truth.lsn, select=(lake_table("public", _AS_OF_TABLE),)
            )
            self.report.as_of_equal = self._lake_rows(truth) == sorted(truth.rows, key=_null_first)
            facts.append("equal to what SELECT showed then" if self.report.as_of_equal else "NOT equal")

    def _lake_rows(self, truth: _Truth) -> list[tuple[str | None, ...]]:
        """Return the rebuilt table in the source's text form, if it has the columns that the source had at that LSN."""
        from toolkit.history import versions
        from toolkit.lake.ledger import Ledger
        from toolkit.lake.session import own_session
        from toolkit.values.lake_types import text_sql

        table = versions.show(
            Ledger(self.config.lake_access, rules=self.config.capture_rules), f"public.{_AS_OF_TABLE}", truth.lsn
        ).table
        if tuple(c.name for c in table.columns) != truth.columns:
            return []
        names = lake_columns([(c.attnum, c.name) for c in table.columns])
        texts = ", ".join(f"{text_sql(names[c.attnum], c)} AS {quote_spark(f'c{c.attnum}')}" for c in table.columns)
        place = f"{self.config.lake.names.as_of(truth.lsn.tag)}.{lake_table('public', _AS_OF_TABLE)}"
        rows = own_session(self.config.lake_access).sql(f"SELECT {texts} FROM {place}").collect()
        return sorted((tuple(row) for row in rows), key=_null_first)

    def _notebook(self) -> Path:
        from toolkit.demo import notebooks

        with self.story.step("the schema history notebook is run to HTML"):
            return notebooks.run(
                self.config, "schema_history", {"table": "public.customers"}, self.folder / "schema_history.html"
            )

    def _count(self) -> None:
        from toolkit.history import versions
        from toolkit.lake.ledger import Ledger

        ledger = Ledger(self.config.lake_access, rules=self.config.capture_rules)
        self.report.ddl_events = len(versions.events(ledger))
        self.report.changes = sum(batch.changes for batch in ledger.batches())

    def _places(self, notebook: Path) -> None:
        from toolkit.quality import expectations

        page = expectations.directory(self.config.lake_access) / "report.html"
        store = [f"  Objects     {self.folder / 'store'}"]
        lake = store if self.cluster else sql_prompt.hints(self.config.lake_access, self.folder)
        report = self.report
        self.story.echo(
            "\n".join(
                [
                    "",
                    f"{'Proven' if report.proven else 'NOT proven'} in {report.seconds} s:"
                    f" {report.changes:,} changes and {report.ddl_events} DDL events through the slot.",
                    "",
                    f"  Parity      {page}",
                    f"  Notebook    {notebook}",
                    *lake,
                    f"  Report      {self.folder / 'report.json'}",
                ]
            )
        )


def _prepare(folder: Path) -> Path:
    folder = folder.resolve()
    if folder.exists():
        if not (folder / _MARKER).is_file() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder}: not a folder of an earlier demo; name another with --directory")
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True)
        (folder / _MARKER).touch()
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {error.strerror}; name another with --directory") from None
    return folder


def _configure(folder: Path, server: EmbeddedServer, lake: str) -> Config:
    file = folder / "cdc.toml"
    file.touch(mode=0o600)
    conninfo = json.dumps(server.conninfo(_DATABASE))  # a JSON string is a TOML basic string
    file.write_text(
        "# Made by `cdc demo`. Its servers are gone; a lake on this disk stays, and commands that only read it work.\n"
        f'[source]\nconninfo = {conninfo}\ntables = ["public.*"]\n'
        'exclude = ["public.pgbench_branches", "public.pgbench_tellers"]\nnew_tables = "publish"\n\n'
        f'[dbt]\nproject_dir = "dbt_project"\n\n{lake}',
        encoding="utf-8",
    )
    return load(str(file))


def _read_truth(source: SourceConfig, *, cut_seconds: float) -> _Truth:
    """Read one whole table in the snapshot of an exact LSN."""
    from psycopg import sql

    from toolkit.source import connection, row_lines, slot

    with contextlib.ExitStack() as stack:
        conn = stack.enter_context(connection.connect(source))
        cut = stack.enter_context(slot.create_slot(source, cut_seconds=cut_seconds))
        stack.enter_context(row_lines.inside_snapshot(conn, cut.snapshot_name, seconds=30))
        shown = conn.execute(sql.SQL("select * from {}").format(sql.Identifier("public", _AS_OF_TABLE)))
        result, columns = shown.pgresult, tuple(column.name for column in shown.description or [])
        assert result is not None
        rows = [tuple(_text(result.get_value(n, i)) for i in range(len(columns))) for n in range(result.ntuples)]
        return _Truth(Lsn(cut.lsn), columns, rows)


def _text(value: bytes | None) -> str | None:
    """Decode a value as the server sent it, before a client converts it."""
    return None if value is None else bytes(value).decode()


def _null_first(row: Sequence[str | None]) -> list[tuple[bool, str]]:
    return [(value is not None, value or "") for value in row]


def _wait_for(traffic: workload.Load, committed: int) -> None:
    """Wait until that many transactions are committed, or the traffic ended by itself."""
    end = time.monotonic() + 30
    while traffic.counts.committed < committed:
        if time.monotonic() > end:
            traffic.stop()  # raises the error that stopped it, if there was one
            raise CdcError(f"demo: the load is at {traffic.counts.committed} transactions; run `cdc demo` again")
        time.sleep(0.02)


def _names_fault(found: CheckReport, key: int) -> bool:
    """Return whether the report names table, key and column of the fault, and nothing else."""
    wrong = [t for t in found.tables if t.status != CheckStatus.IDENTICAL]
    if (
        [t.table for t in wrong] != [f"public.{_FAULT_TABLE}"]
        or wrong[0].modified != 1
        or wrong[0].added
        or wrong[0].removed
    ):
        return False
    sample = wrong[0].samples[0]
    return dict(sample.key) == {"id": str(key)} and [d.column for d in sample.differences] == [_FAULT_COLUMN]


@contextlib.contextmanager
def _only_own_environment() -> Iterator[None]:
    """Remove the caller's CDC_* and PG* variables, so that the demo never uses another database or lake."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(("CDC_", "PG"))}
    try:
        yield
    finally:
        os.environ.update(kept)


def _stop_spark() -> None:
    if "toolkit.lake.session" in sys.modules:
        from toolkit.lake import session

        session.stop_session()
