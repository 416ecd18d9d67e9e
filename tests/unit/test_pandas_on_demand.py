"""A command of the toolkit imports pandas when it is asked for by name; any other program when pyarrow wants it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from toolkit.lake import worker_daemon

pytestmark = pytest.mark.unit

_ENABLED = "from toolkit.lake import pandas_on_demand; pandas_on_demand.enable(); "
_SHOW = "import sys; print('pandas' in sys.modules)"


def printed(code: str, **variables: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "use",
    [
        "pandas_on_demand.settle_pyarrow()",
        "pandas_on_demand.settle_pyspark()",
        "pandas_on_demand.settle_pyarrow(); import pyiceberg.io.pyarrow",
    ],
)
def test_a_command_leaves_pandas_out(use: str) -> None:
    assert printed(f"{_ENABLED}{use}; {_SHOW}") == ["False"]


def test_another_program_has_pandas_as_before() -> None:
    assert printed(f"from toolkit.lake import pandas_on_demand as p; p.settle_pyarrow(); {_SHOW}") == ["True"]


def test_pyarrow_knows_values_of_pandas_once_they_exist() -> None:
    series = "pd.Series([1.0, float('nan')])"
    code = (
        f"{_ENABLED}pandas_on_demand.settle_pyarrow(); import pyarrow as pa; pa.table({{'a': [1]}}).to_pandas();"
        f" import pandas as pd; print(pa.array({series}, from_pandas=True).null_count, pa.array({series}).null_count)"
    )
    assert printed(code) == ["1", "1"]


@pytest.mark.parametrize(("variables", "imported"), [({}, "True"), ({"CDC_PANDAS_ON_DEMAND": "1"}, "False")])
def test_a_worker_does_as_the_process_that_uses_spark(variables: dict[str, str], imported: str) -> None:
    code = f"from toolkit.lake import pandas_on_demand; pandas_on_demand.prepare_worker(); {_SHOW}"
    assert printed(code, **variables) == [imported]


def test_workers_do_not_list_the_files_of_sparks_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    copy = os.path.join(os.path.dirname(pyspark.__file__), "python", "lib", "pyspark.zip")  # noqa: PTH118, PTH120
    path = [copy, "/spark/jars/spark-core.jar", "/app/shipped.zip", *sys.path]
    monkeypatch.setattr(sys, "path", path.copy())
    worker_daemon.leave_archives_out()
    assert sys.path == ["/app/shipped.zip", *path[3:]]


def test_workers_keep_a_pyspark_that_is_only_in_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/spark/python/lib/pyspark.zip", "/spark/jars/spark-core.jar"])
    worker_daemon.leave_archives_out()
    assert sys.path == ["/spark/python/lib/pyspark.zip"]
