"""Fixtures of the dbt tests."""

from __future__ import annotations

import pytest

from tests.dbt.harness import Lake
from toolkit.values.config import Config


@pytest.fixture
def built(lake: Config) -> Lake:
    """An empty lake with a copy of the dbt project."""
    return Lake(lake)
