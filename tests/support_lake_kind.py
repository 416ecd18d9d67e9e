"""Run tests of the default lake on another one: `CDC_TEST_LAKE=rest+s3` or `postgresql+s3`.

A plugin for `tests/conftest.py`. Every configuration of a test then has a lake in an object store with a catalog that
is a server, and Spark is a standalone cluster whose workers run as another user (`tests/support_cluster.py`). A test
with an empty lake has one of its own, and the tests of a module that follow each other have one together. The end of
the run prints what became of each file.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support_catalogs import postgresql_catalog, rest_catalog, rest_classpath, store_servers
from tests.support_cluster import Cluster, cluster
from tests.support_postgres import serve
from tests.support_stores import Store, running_store
from toolkit.build import models
from toolkit.values.config import Config
from toolkit.values.process_env import environment

_KIND = os.environ["CDC_TEST_LAKE"]
#: So many programs have executors at a time: the test, a command that it starts, and one that outlives its runner.
_APPLICATIONS = 3
#: Fixtures that make an empty lake for each test.
_EMPTY = ("lake", "plain_lake", "place")
_OUTCOMES = ("passed", "failed", "error", "skipped")
NewLake = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def new_lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewLake]:
    """Give what makes a new lake: its variables hold in a block."""
    numbers = itertools.count(1)
    with ExitStack() as running:
        folder = tmp_path_factory.mktemp("lakes")
        workers = running.enter_context(cluster((_APPLICATIONS,) * 2, f"{_APPLICATIONS}g"))
        store = running.enter_context(running_store("s3", request.getfixturevalue("store_servers")("s3"), folder))
        running.enter_context(environment(store.environment))
        server = running.enter_context(serve(18)) if _KIND == "postgresql+s3" else None

        @contextmanager
        def new() -> Iterator[None]:
            own = folder / str(next(numbers))
            own.mkdir()
            placed = replace(store, warehouse=f"{store.warehouse}/{own.name}")
            with ExitStack() as stack:
                if server is not None:
                    section = stack.enter_context(postgresql_catalog(server))
                else:
                    jars = request.getfixturevalue("rest_classpath")
                    section, _ = stack.enter_context(rest_catalog(jars, own, placed.warehouse, placed))
                stack.enter_context(environment(_variables(section, placed, workers)))
                of_dbt = models.secret_variables(Config(root=own).lake_access)  # for a dbt without the toolkit
                stack.enter_context(environment({variable: value for _, variable, value in of_dbt}))
                yield

        yield new


def _variables(section: Mapping[str, Any], store: Store, workers: Cluster) -> dict[str, str]:
    one = {"spark.executor.cores": "1", "spark.cores.max": "2"}  # an executor on each of two workers
    settings = workers.settings | one | {"spark.authenticate.secret": workers.secret}
    properties = {**store.properties, **store.keys, **section["properties"]}
    return {
        "CDC_LAKE__WAREHOUSE": store.warehouse,
        "CDC_LAKE__TYPE": str(section.get("type", "jdbc")),
        "CDC_LAKE__URI": str(section["uri"]),
        "CDC_LAKE__PROPERTIES": json.dumps(properties),
        "CDC_SPARK": json.dumps(settings),
    }


@pytest.fixture(scope="module", autouse=True)
def _lake_of_the_module(new_lake: NewLake) -> Iterator[None]:
    with new_lake():
        yield


@pytest.fixture(autouse=True)
def _lake_of_the_test(request: pytest.FixtureRequest, new_lake: NewLake) -> Iterator[None]:
    if not set(_EMPTY) & set(request.fixturenames):
        yield
        return
    with new_lake():
        yield


@pytest.fixture(autouse=True)
def _no_other_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a test whose commands made the default lake: they lacked the variables, so the test proves nothing here."""
    made = set(_default_catalogs(tmp_path_factory))
    yield
    assert set(_default_catalogs(tmp_path_factory)) == made


def _default_catalogs(factory: pytest.TempPathFactory) -> Iterator[Path]:
    return factory.getbasetemp().rglob("lake/catalog.db")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of the embedded catalog, and modules that start stores: their lakes are those that they name."""
    own = [item for item in items if item.get_closest_marker("embedded") or _starts_stores(item)]
    config.hook.pytest_deselected(items=own)
    items[:] = [item for item in items if item not in own]


def _starts_stores(item: pytest.Item) -> bool:
    module = item.getparent(pytest.Module)
    return module is not None and hasattr(module.obj, "store_servers")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the column of the matrix that this run is."""
    found: dict[str, Counter[str]] = {}
    for outcome in _OUTCOMES:
        for report in terminalreporter.stats.get(outcome, ()):
            found.setdefault(report.location[0], Counter())[outcome] += 1
    wide = max(map(len, found), default=0)
    terminalreporter.write_line(f"{_KIND}: {'file':{wide}}" + "".join(f" {outcome:>8}" for outcome in _OUTCOMES))
    for file, counts in sorted(found.items()):
        terminalreporter.write_line(f"{_KIND}: {file:{wide}}" + "".join(f" {counts[name]:8}" for name in _OUTCOMES))


__all__ = ["rest_classpath", "store_servers"]
