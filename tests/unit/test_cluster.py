"""What a cluster needs beside local mode: its settings, and the bytes of tasks as files that executors can read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit import wire
from toolkit.build import models
from toolkit.capture import executor_copies
from toolkit.decode.planner import plan
from toolkit.decode.task import DecodeTask
from toolkit.lake import cluster, executors
from toolkit.lake.batch_parts import Part, read_part
from toolkit.lake.executor_spool import delivered
from toolkit.lake.executors import Delivery, examine, to_deliver
from toolkit.lake.session import spark_settings
from toolkit.lake.staging import DECODE
from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError, LakeError
from toolkit.values.installed_code import code_identity, hash_of
from toolkit.values.lake_access import LakeConfig
from toolkit.values.modes import CopyOn
from toolkit.values.source_access import SnapshotConfig

pytestmark = pytest.mark.unit
_STANDALONE = "spark://h:7077"
TABLE = wire.table(50, [wire.column(1, "id"), wire.column(2, "a")])


def _config(folder: Path, **spark: str) -> Config:
    return Config(root=folder, spark={f"spark.{key.replace('_', '.')}": value for key, value in spark.items()})


def _files(config: Config) -> list[Path]:
    return [path for path in Path(cluster.spool_folder(config.lake_access)).rglob("*") if path.is_file()]


@pytest.fixture
def tasks(tmp_path: Path) -> list[DecodeTask]:
    """Three tasks that read one spool, each another span of it."""
    relation = wire.relation(50, [("id", 25), ("a", 25)])
    sent = [
        message
        for number in range(1, 30)
        for message in wire.transaction(
            number, relation, *(wire.insert(50, (f"{number}.{n}", "x" * n)) for n in range(number))
        )
    ]
    (batch,) = plan(wire.spool(tmp_path / "spool", sent), context=wire.context(TABLE)).batches
    made = batch.tasks(3)
    assert len(made) == 3
    return made


def _read(tasks: Sequence[DecodeTask], given: Delivery | None) -> pa.Table:
    batches = [batch for task in tasks for batch in read_part(Part((task,)), DECODE, given)]
    return pa.Table.from_batches(batches, EVENT_SCHEMA)


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", False), ("local[2]", False), ("local[*,4]", False), ("local-cluster[1,1,1024]", True),
     (_STANDALONE, True), ("yarn", True), ("k8s://h", True)],
)  # fmt: skip
def test_which_masters_are_clusters(tmp_path: Path, master: str, expected: bool) -> None:
    assert cluster.is_cluster(_config(tmp_path, master=master).lake_access) == expected
    assert not cluster.is_cluster(Config(root=tmp_path).lake_access)


def test_a_standalone_cluster_must_say_whether_it_authenticates(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spark\.authenticate is not set"):
        cluster.require_secured(_config(tmp_path, master=_STANDALONE).lake_access)
    with pytest.raises(ConfigError, match=r"spark\.authenticate\.secret is not set"):
        cluster.require_secured(_config(tmp_path, master=_STANDALONE, authenticate="true").lake_access)
    cluster.require_secured(
        _config(tmp_path, master=_STANDALONE, authenticate="true", authenticate_secret="s").lake_access
    )
    cluster.require_secured(_config(tmp_path, master="yarn").lake_access)
    open_one = _config(tmp_path, master=_STANDALONE, authenticate="false")
    cluster.require_secured(open_one.lake_access)
    assert cluster.is_open(open_one.lake_access)
    assert "spark.network.crypto.enabled" not in spark_settings(
        open_one.lake_access
    )  # Spark refuses it without authentication


def test_the_secret_of_a_cluster_is_in_no_profile_of_dbt(tmp_path: Path) -> None:
    config = _config(tmp_path, master=_STANDALONE, authenticate="true", authenticate_secret="hidden")
    ((setting, variable, value),) = models.secret_variables(config.lake_access)
    assert (setting, value) == ("spark.authenticate.secret", "hidden")
    assert "hidden" not in models.profile(config.lake_access, dbt=config.dbt_project) and variable in models.profile(
        config.lake_access, dbt=config.dbt_project
    )


@pytest.mark.parametrize("process", ["driver", "executor"])
def test_a_garbage_collector_of_the_configuration_is_the_only_one(tmp_path: Path, process: str) -> None:
    """A JVM that is given two does not start."""

    def options(extra: str) -> str:
        given = {"spark.master": "yarn", f"spark.{process}.extraJavaOptions": extra}
        return spark_settings(Config(root=tmp_path, spark=given).lake_access)[f"spark.{process}.defaultJavaOptions"]

    assert "-XX:+UseParallelGC" in options("-Da=b")
    assert "-XX:+UseParallelGC" not in options("-Da=b -XX:+UseG1GC") and "-Duser.timezone=UTC" in options("")


@pytest.mark.parametrize(
    ("master", "warehouse", "daemon"),
    [
        ("local[2]", "lake/warehouse", "worker_daemon"),
        ("local[2]", "s3://bucket/lake", "store_daemon"),
        ("spark://host:7077", "s3://bucket/lake", "store_daemon"),
    ],
)
def test_workers_are_forks_of_a_daemon_that_has_imported_what_reads_the_store(
    tmp_path: Path, master: str, warehouse: str, daemon: str
) -> None:
    """Each worker of each task imported it in local mode, where a lake in a store is read too."""
    config = Config(
        root=tmp_path,
        lake=LakeConfig(warehouse=warehouse, properties={"client.region": "x"}),
        spark={"spark.master": master},
    )
    assert spark_settings(config.lake_access)["spark.python.daemon.module"] == f"toolkit.lake.{daemon}"


def test_the_python_of_executors_is_named_by_the_settings(tmp_path: Path) -> None:
    def python(master: str, **spark: str) -> str:
        config = Config(root=tmp_path, spark={"spark.master": master, **spark})
        return cluster.python_of_executors(spark_settings(config.lake_access))

    assert python("local[2]") == python("local-cluster[1,1,1024]") == sys.executable
    assert python(_STANDALONE) == "python3"
    assert python(_STANDALONE, **{"spark.executorEnv.PYSPARK_PYTHON": "/a"}) == "/a"
    assert python(_STANDALONE, **{"spark.pyspark.python": "/b"}) == "/b"


@pytest.mark.parametrize("in_memory", [True, False])
def test_executors_decode_from_copies_what_local_tasks_decode_from_the_spool(
    tmp_path: Path, tasks: list[DecodeTask], in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.setattr(executors, "_IN_MEMORY", 0)
    local = _read(tasks, None)
    assert local.num_rows == sum(range(30))
    config = _config(tmp_path, master="yarn")
    with delivered(config.lake_access, tasks) as (moved, given):
        assert given is not None and {Path(task.path).parent.name for task in moved} == {".spool"}
        spans = [task.span for task in tasks]
        sizes = [len(pa.input_stream(str(file), compression="zstd").read()) for file in _files(config)]
        assert sorted(sizes) == sorted(stop - first for first, stop in spans)
        (tmp_path / "spool").unlink()  # an executor has no such file
        assert _read(moved, given).equals(local)
    assert _files(config) == []


def test_local_tasks_read_the_spool_itself(tmp_path: Path, tasks: list[DecodeTask]) -> None:
    config = Config(root=tmp_path)
    with delivered(config.lake_access, tasks) as (same, given):
        assert same is tasks and given is None and _files(config) == []


def test_the_next_batch_deletes_what_a_killed_run_has_delivered(tmp_path: Path, tasks: list[DecodeTask]) -> None:
    config = _config(tmp_path, master="yarn")
    killed = delivered(config.lake_access, tasks)
    killed.__enter__()
    left = _files(config)
    assert len(left) == 3
    with delivered(config.lake_access, tasks):
        assert set(left) < set(_files(config))  # the first run holds its list
    (listed,) = (config.lake_access.work_dir / "delivered").glob("*.txt")
    text = listed.read_text(encoding="utf-8")
    killed.__exit__(None, None, None)
    listed.write_text(text, encoding="utf-8")  # as a kill leaves it
    for path in left:
        path.write_bytes(b"x")
    with delivered(config.lake_access, []):
        assert _files(config) == [] and not listed.exists()


def test_another_code_is_refused_by_each_task(tmp_path: Path, tasks: list[DecodeTask]) -> None:
    other = Delivery("0.0.9 (00000000)", {})
    with pytest.raises(LakeError, match=r"has toolkit .*, and the driver has 0\.0\.9 \(00000000\)"):
        _read(tasks, other)


def test_an_executor_says_what_does_not_fit(tmp_path: Path) -> None:
    place = tmp_path / "probe"
    with to_deliver(str(place), {}) as file:
        file.write(b"abc")
    whole = place.read_bytes()
    (tmp_path / "torn").write_bytes(whole[:-2])

    def problem(code: str, path: Path, content: bytes) -> str | None:
        return examine(Delivery(code, {}), str(path), content)

    assert problem(code_identity(), place, b"abc") is None
    assert "reads other bytes" in (problem(code_identity(), place, b"abd") or "")
    for size in (2, 4):
        assert f"has not {size} bytes" in (problem(code_identity(), place, b"abcd"[:size]) or "")
    for damaged in ("missing", "torn"):
        assert "cannot read" in (problem(code_identity(), tmp_path / damaged, b"abc") or "")
    assert "install the same version" in (problem("0.0.9 (0)", place, b"abc") or "")


@pytest.mark.parametrize("conninfo", ["host=h password=known", "postgresql://u:known@h/d", "host=h sslpassword=known"])
def test_a_password_is_not_sent_to_executors(tmp_path: Path, conninfo: str) -> None:
    config = _config(tmp_path, master="yarn")
    named = config.source_access.changed(conninfo=conninfo)
    with pytest.raises(ConfigError, match=r"would send (ssl)?password of \[source\] conninfo to executors") as refused:
        executor_copies.require_connected(named, config.lake_access)
    assert "known" not in str(refused.value)
    configured = _config(tmp_path, master="yarn", executorEnv_PGPASSWORD="known")
    with pytest.raises(ConfigError, match=r"would send spark\.executorEnv\.PGPASSWORD of \[spark\]"):
        executor_copies.require_connected(configured.source_access, configured.lake_access)


def test_executors_copy_only_where_it_is_said_and_a_cluster_runs(tmp_path: Path) -> None:
    on = SnapshotConfig(on=CopyOn.EXECUTORS)
    found = []
    for config in (_config(tmp_path, master="yarn"), Config(root=tmp_path)):
        for source in (config.source_access, replace(config.source_access, snapshot=on)):
            found.append(executor_copies.on_executors(source, config.lake_access))
    assert found == [False, True, False, False]


def test_other_statements_are_other_code(tmp_path: Path) -> None:
    """Executors that read the source run statements, some of which guard it."""
    (tmp_path / "resources" / "sql").mkdir(parents=True)
    (tmp_path / "module.py").write_text("a = 1\n", encoding="utf-8")
    guard = tmp_path / "resources" / "sql" / "guard.sql"
    guard.write_text("select 1", encoding="utf-8")
    before = hash_of(tmp_path)
    guard.write_text("select 2", encoding="utf-8")
    assert hash_of(tmp_path) != before
