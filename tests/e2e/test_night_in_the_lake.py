"""Faults that page an operator at night and need Spark: each is named everywhere, and its remedy repairs it."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.support_night import Night, packages_without, with_notices
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import session
from toolkit.rawlog.batch import FORMAT
from toolkit.values.config import Config, SourceConfig
from toolkit.values.resources import ROOT

pytestmark = [pytest.mark.embedded, pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]


def _tamper(night: Night) -> None:
    """Another program writes to a table of the lake."""
    session.own_session(night.config.lake_access).sql("update current.public__a set x = 'tampered' where id = 1")


def _pause(night: Night) -> None:
    assert night.cdc("ddl", "pause").exit_code == 0
    night.sql("insert into public.a values (3, 'captured later')")
    assert night.cdc("drain").exit_code == 0


def _fill(night: Night) -> None:
    """The files of the JVM may not grow, as on a disk that is full."""
    night.sql("insert into public.a select i, repeat(md5(i::text), 40) from generate_series(10, 3000) i")
    assert night.cdc("drain").exit_code == 0
    pid = session.own_session(night.config.lake_access)._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    night.hold(_files_of_below(pid, 20_000))


def _start_by_another_version(night: Night) -> None:
    """A later version of the toolkit, which writes its log in another format, starts a new log in this lake."""
    later = night.config.root / "later"
    shutil.copytree(ROOT / "toolkit", later / "toolkit")
    batch = later / "toolkit" / "rawlog" / "batch.py"
    written = batch.read_text(encoding="utf-8")
    assert written.count(f"FORMAT = {FORMAT}") == 1
    batch.write_text(written.replace(f"FORMAT = {FORMAT}", f"FORMAT = {FORMAT + 1}"), encoding="utf-8")
    packages = packages_without(night.config.root / "packages")
    night.environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(later), packages])}
    try:
        done = night.cdc("init", "--new-generation")
    finally:
        night.environment = None
    assert done.exit_code == 0, done


@contextmanager
def _files_of_below(pid: int, size: int) -> Iterator[None]:
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


#: The fault, words of what is found and of the remedy, the command that meets it with its exit code, and what is run to
#: be green again.
FAULTS: dict[str, tuple[Callable[[Night], None], str, str, str, int, tuple[str, ...]]] = {
    "red table": (
        _tamper,
        "public.a: 1 rows modified",
        "cdc build -- --full-refresh --select current__public__a history__public__a",
        "check",
        3,
        ("build -- --full-refresh --select current__public__a history__public__a", "check"),
    ),
    "capture switched off": (
        _pause,
        "DDL capture was paused",
        "cdc ddl resume, then cdc repair public.a",
        "check",
        3,
        ("ddl resume", "repair public.a", "check"),
    ),
    "build fails": (_fill, "disk I/O error", "run `cdc build` again", "build", 1, ("build", "check")),
    "log of another version": (
        _start_by_another_version,
        f"is of format {FORMAT + 1}",
        "`cdc init --new-generation`",
        "drain",
        1,
        ("init --new-generation", "run"),
    ),
}


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_what_goes_wrong_in_the_lake_at_night(database: str, lake: Config, pg: EmbeddedServer) -> None:
    shutil.copytree(ROOT / "dbt_project", lake.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs"))
    config = with_notices(lake.model_copy(update={"source": SourceConfig(conninfo=database)}))
    with ExitStack() as stack:
        night = Night(config, pg, stack)
        night.sql("create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
        assert night.cdc("init").exit_code == 0
        assert night.cdc("run").exit_code == 0
        night.quiet()
        for fault, (plant, found, remedy, command, code, ways) in FAULTS.items():
            plant(night)
            try:
                night.fails(command, code, found, remedy)
                night.shown(found, remedy)
            finally:
                stack.pop_all().close()
            for way in ways:
                done = night.cdc(*way.split())
                assert done.exit_code == 0, (fault, done)
            night.quiet()
