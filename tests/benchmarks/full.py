"""Speeds of drain, build and check over the workloads W1 to W7, with the content of every run validated.

`make bench-full`, or `python -m tests.benchmarks.full w1 w5 --changes 100000 --repeat 1`. One JSON line a figure on
stdout: the median of the runs with its spread, as in `bench`, and the seconds of each stage.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import commands
from tests.benchmarks.bench import copy_to_nothing, measured, print_figure
from tests.benchmarks.content import require_same
from tests.benchmarks.processes import Usage
from tests.benchmarks.workloads import WORKLOADS, Workload, world
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import pandas_on_demand
from toolkit.quality.report import CheckReport
from toolkit.values import progress
from toolkit.values.config import Config

_LIMIT_SLOT = "bench_limit"


def main() -> None:
    """Run the workloads."""
    pandas_on_demand.enable()  # as `cdc` does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--changes", type=int, default=200_000, help="changes that each workload makes")
    parser.add_argument("--repeat", type=int, default=3, help="runs, each from the same WAL into a lake of its own")
    parser.add_argument("--postgres", type=int, default=16, choices=(16, 18))
    arguments = parser.parse_args()
    if unknown := set(arguments.workloads) - set(WORKLOADS):
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    chosen = [WORKLOADS[name] for name in arguments.workloads or WORKLOADS]
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        try:
            for workload in chosen:
                with EmbeddedServer(None, arguments.postgres, settings={"autovacuum": "off"}) as server:
                    _run(Path(name), server, workload, arguments.changes, arguments.repeat)
        finally:
            from toolkit.lake import session

            session.stop_session()


def _run(folder: Path, server: EmbeddedServer, workload: Workload, changes: int, repeat: int) -> None:
    runs: dict[str, list[tuple[Usage, dict[str, float]]]] = {}
    captured = 0

    def timed(figure: str, function: Callable[..., Any], *given: Any) -> Any:
        results: list[Any] = []
        with stages() as seconds:
            usage = measured(server, lambda: results.append(function(*given)))
        runs.setdefault(figure, []).append((usage, seconds))
        return results[0]

    with world(folder, server, workload, changes, repeat, (_LIMIT_SLOT,)) as made:
        limits = [
            measured(server, copy_to_nothing, made.conn, made.configs[0], made.upto, _LIMIT_SLOT) for _ in range(2)
        ]
        for config in made.configs:
            captured = timed("drain", commands.drain, config, made.upto).changes - 1  # without the fence
            timed("build", commands.build, config)
            report = timed("check", _check, config)
            if not report.green:  # DDL that rewrites a table makes it stale, which only a new copy repairs
                timed(
                    "repair",
                    commands.repair,
                    config,
                    [table.table for table in report.tables if table.status != "identical"],
                )
                timed("build_after_repair", commands.build, config)
                report = timed("check_after_repair", _check, config)
            if not report.green:
                raise SystemExit(f"bench: {workload.name}: {report.failure()}")
            if workload.replays:
                require_same(config, made.conn, workload.tables)
    limit = min(usage.seconds for usage in limits)
    for figure, found in runs.items():
        found.sort(key=lambda run: run[0].seconds)
        usage, seconds = found[len(found) // 2]
        print_figure(
            f"{workload.name}_{figure}", round(captured / usage.seconds), "changes/s", usage,
            round(limit / usage.seconds, 3) if figure == "drain" else None,
            changes=captured, spread=[round(run[0].seconds, 2) for run in (found[0], found[-1])],
            stages={what: round(spent, 2) for what, spent in sorted(seconds.items(), key=lambda stage: -stage[1])},
        )  # fmt: skip


def _check(config: Config) -> CheckReport:
    return commands.check(config)


class _Stages:
    """A display that adds up how long each stage of progress lasted."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def begin(self, stage: progress.Stage) -> None:
        """Note nothing: a stage knows when it started."""

    def update(self, stage: progress.Stage) -> None:
        """Note nothing."""

    def end(self, stage: progress.Stage) -> None:
        """Add the seconds of a stage."""
        self.seconds[stage.what] += time.monotonic() - stage.started

    def result(self) -> None:
        """Note nothing."""


@contextmanager
def stages() -> Iterator[dict[str, float]]:
    """Collect the seconds of each stage inside the block. Stages are nested, so they add up to more than the whole."""
    display = _Stages()
    progress.show_on(display)
    try:
        yield display.seconds
    finally:
        progress.show_on(None)


if __name__ == "__main__":
    main()
