"""dbt finds the toolkit's plugin by itself, and it does nothing for the projects of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

#: What dbt does in each command, first for a project on another engine, then twice in a process for one on Spark.
FOUND = """
import sys
from dbt.adapters.factory import FACTORY
from dbt.plugins import set_up_plugin_manager
set_up_plugin_manager("another")
assert "dbt_cdc_toolkit" in sys.modules, "dbt has not found the plugin"
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"toolkit", "pyspark"} and "dbt.adapters.spark" not in sys.modules, loaded
FACTORY.load_plugin("spark")
before = FACTORY.plugins["spark"].adapter
set_up_plugin_manager("another")
adapter = FACTORY.plugins["spark"].adapter
set_up_plugin_manager("cdc")
assert FACTORY.plugins["spark"].adapter is adapter, "it is extended once"
assert adapter._available_ - before._available_ == {"cdc_decide", "cdc_replace", "cdc_target", "cdc_write"}
assert issubclass(adapter, before) and adapter.__name__ == before.__name__
assert not any(name.partition(".")[0] == "toolkit" for name in sys.modules)
"""


def test_dbt_finds_the_plugin_of_this_environment(tmp_path: Path) -> None:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", FOUND], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
