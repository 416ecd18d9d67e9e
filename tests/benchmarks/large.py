"""Speeds with one large table: copy, first build, full rebuild, builds after changes, a check, the table as of an LSN.

`python -m tests.benchmarks.large --rows 10000000 --log 50000000`; `make bench-full` runs it. One JSON line a figure on
stdout, as in `bench`, with the bytes that the toolkit's processes read and the stages. Every state that is measured is
compared with the source by a full check, which must be green. With several `--rows` the last line of each figure has
its seconds a row as a ratio to those of the first size.

With `--keep FOLDER` the server and the lake stay there, and the next call with that folder and these sizes goes on with
them: a call with an empty `--parts` copies, the next one builds, and each later one measures a part.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests import commands
from tests.benchmarks.bench import ROWS_SQL, measured, print_figure
from tests.benchmarks.full import stages
from toolkit.build import project
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import pandas_on_demand
from toolkit.values import config as configuration
from toolkit.values.config import Config

_TABLE, _MODEL, _BARE = "public.compared", "public__compared", "current.bare"
_NO_HISTORY = ("--exclude", f"history__{_MODEL}")
_CHANGES = {
    "narrow": "update public.compared set price = price + 1, paid = not paid where id between {low} and {high}",
    "random": "update public.compared set price = price + 1, changed_at = now() where id in ("
    "select 1 + (hashint8(i) & 2147483647)::bigint %% {rows} from generate_series(1::bigint, {changes}) as i)",
}
_PARTS = ("rebuild", "check", "bare", *_CHANGES, "as-of")
#: The other tables of the log have rows of this kind, which only make it longer.
_OTHER = "create table public.other as select i as id, i % 97 as n from generate_series(1::bigint, {rows}) as i"


def main() -> None:
    """Run all figures for each size."""
    pandas_on_demand.enable()  # as `cdc` does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000], help="rows of the table, for each run")
    parser.add_argument("--changes", type=int, default=100_000, help="changes before each build")
    parser.add_argument("--log", type=int, default=0, help="events of the whole log, if more than the rows")
    parser.add_argument("--parts", nargs="*", choices=_PARTS, default=_PARTS, help="what is measured after the build")
    parser.add_argument("--keep", type=Path, help="where server and lake are kept for the next call")
    parser.add_argument("--postgres", type=int, default=16, choices=(16, 18))
    parser.add_argument("--spark", action="append", default=[], help="a line of [spark], such as '\"a.b\" = 1'")
    arguments = parser.parse_args()
    first: dict[str, float] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a call that takes too long keeps the server
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        try:
            for rows in arguments.rows:
                folder = Path(arguments.keep or name) / str(rows)
                folder.mkdir(parents=True, exist_ok=True)
                with (
                    EmbeddedServer(None, arguments.postgres, settings={"autovacuum": "off"}) as server,
                    _kept(server, folder) if arguments.keep else contextlib.nullcontext(),
                ):
                    _bench(_Run(server, rows, first), folder, arguments)
        finally:
            from toolkit.lake import session

            session.stop_session()


@contextlib.contextmanager
def _kept(server: EmbeddedServer, folder: Path) -> Iterator[None]:
    """Run the server on the data of an earlier call, if there is any, and keep the data in `folder`."""
    kept, data = folder / "server", server.data
    if kept.exists():
        server.stop()
        shutil.rmtree(data)
        kept.rename(data)
        server.start()
    try:
        yield
    finally:
        server.stop()
        data.rename(kept)


class _Run:
    """The figures of one size. `first` has the seconds a row of the first size, by figure."""

    def __init__(self, server: EmbeddedServer, rows: int, first: dict[str, float]) -> None:
        self.server, self.rows, self.first = server, rows, first

    def timed(
        self, name: str, count: int, function: Callable[..., Any], *given: Any, limit: float | None = None
    ) -> Any:
        """Run a function, print its figure, and return its result and its seconds. `limit` are those of the limit."""
        results: list[Any] = []
        with stages() as seconds:
            usage = measured(self.server, lambda: results.append(function(*given)))
        each = usage.seconds / count
        linear = round(each / self.first.setdefault(name, each), 3)
        print_figure(
            f"large_{name}", round(count / usage.seconds), "rows/s", usage, limit and round(limit / usage.seconds, 3),
            rows=self.rows, read_mb=round(usage.read_mb, 1), against_first=linear,
            stages={what: round(spent, 2) for what, spent in sorted(seconds.items(), key=lambda stage: -stage[1])},
        )  # fmt: skip
        return results[0], usage.seconds


def _bench(run: _Run, folder: Path, arguments: argparse.Namespace) -> None:
    rows, changes, parts = run.rows, arguments.changes, arguments.parts
    others = max(arguments.log - rows, 0)
    file = folder / "cdc.toml"
    file.write_text(
        f'[source]\nconninfo = {json.dumps(run.server.conninfo())}\ntables = ["public.*"]\n'
        "[drain]\nmax_changes = 2_000_000\n[spark]\n" + "\n".join(arguments.spark) + "\n",
        encoding="utf-8",
    )
    config = configuration.load(str(file))
    project.ensure(config.dbt_project)
    copied, built = folder / "copied", folder / "built"
    with psycopg.connect(run.server.conninfo(), autocommit=True) as conn:
        if not copied.exists():
            _fill(conn, rows, others)
            run.timed("copy", rows + others, commands.init, config)
            copied.touch()
        if first_build := bool(parts) and not built.exists():
            run.timed("first_build", rows, lambda: commands.build(config, select=(_MODEL,)))
            built.touch()
        if "rebuild" in parts:
            if not first_build:
                _build_layer(config, "current", "--full-refresh")  # it also compiles
            run.timed("rebuild_current", rows, _build_layer, config, "current", "--full-refresh")
        if "check" in parts:
            _check(run, conn, config)
        if "bare" in parts:
            _merge_bare(run, config, changes, rows)
        kinds = [kind for kind in _CHANGES if kind in parts]
        if kinds:  # the first builds of a process also compile
            conn.execute(f"update {_TABLE} set paid = not paid where id = 1".encode())
            commands.drain(config)
            commands.build(config, select=(_MODEL,))
        for kind in kinds:
            low = rows // 3
            text = _CHANGES[kind].format(low=low, high=low + changes - 1, changes=changes, rows=rows)
            conn.execute(text.replace("%%", "%").encode())
            run.timed(f"drain_{kind}", changes, commands.drain, config)
            for layer in ("current", "history"):
                run.timed(f"build_{layer}_{kind}", changes, _build_layer, config, layer)
            _require_green(config)
        if "as-of" in parts:
            as_of = commands.drain(config).committed_lsn
            commands.build(config, select=(_MODEL,))
            built, _ = run.timed(
                "as_of",
                rows,
                lambda: commands.build(config, as_of=as_of, select=(_MODEL,), dbt_args=_NO_HISTORY),
            )
            _require_as_of(config, built.schema, rows)


def _build_layer(config: Config, layer: str, *arguments: str) -> None:
    other = "history" if layer == "current" else "current"
    commands.build(config, select=(_MODEL,), dbt_args=("--exclude", f"{other}__{_MODEL}", *arguments))


def _fill(conn: psycopg.Connection[Any], rows: int, others: int) -> None:
    conn.execute(
        "create table public.compared (id bigint primary key, customer integer not null, quantity integer,"
        " sku text not null, remark text, price numeric(12, 2), ordered_at timestamptz not null,"
        " changed_at timestamptz, paid boolean not null, extra jsonb)"
    )
    conn.execute(ROWS_SQL, [rows])
    if others:
        conn.execute(_OTHER.format(rows=others).encode())
        conn.execute("alter table public.other add primary key (id)")
    conn.execute("vacuum analyze")


def _check(run: _Run, conn: psycopg.Connection[Any], config: Config) -> None:
    """Compare every row, beside the hash of every row that the source makes itself."""
    _require_green(config)  # the first one also compiles
    hashed = f"select sum(hashtextextended(c::text, 0)) from {_TABLE} as c"
    _, limit = run.timed("row_hash", run.rows, conn.execute, hashed)
    run.timed("check", run.rows, _require_green, config, limit=limit)


def _require_green(config: Config) -> None:
    report = commands.compare(config, (_TABLE,), full=True)
    if not report.green:
        raise SystemExit(f"bench: {report.to_dict()}")


def _merge_bare(run: _Run, config: Config, changes: int, rows: int) -> None:
    """Merge typed rows into a table that has no log: the limit of a build."""
    from toolkit.lake import session

    spark = session.own_session(config.lake_access)
    modes = ", ".join(f"'write.{operation}.mode' = 'merge-on-read'" for operation in ("delete", "update", "merge"))
    spark.sql(
        f"CREATE TABLE {_BARE} USING iceberg TBLPROPERTIES ('format-version' = '3', {modes})"
        f" AS SELECT * FROM current.{_MODEL}"
    )
    step = max(rows // changes, 1)
    spark.sql(f"CREATE TABLE {_BARE}_new USING iceberg AS SELECT * FROM {_BARE} WHERE id % {step} = 0 LIMIT {changes}")
    statement = (
        f"MERGE INTO {_BARE} t USING {_BARE}_new s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    run.timed("merge_bare", changes, spark.sql, statement)
    for name in (_BARE, f"{_BARE}_new"):
        spark.sql(f"DROP TABLE {name} PURGE")


def _require_as_of(config: Config, schema: str, rows: int) -> None:
    """Compare the table as of the newest LSN with the built one, which a check has compared with the source."""
    from toolkit.lake import session

    spark = session.own_session(config.lake_access)
    columns = "xxhash64(id, customer, quantity, sku, remark, price, ordered_at, changed_at, paid, extra)"
    sums = [
        spark.sql(f"SELECT count(*), sum(cast({columns} AS decimal(38, 0))) FROM {name}.{_MODEL}").collect()[0]
        for name in ("current", schema)
    ]
    if sums[0] != sums[1] or sums[0][0] != rows:
        raise SystemExit(f"bench: {schema}.{_MODEL} differs from current: {sums}")


if __name__ == "__main__":
    main()
