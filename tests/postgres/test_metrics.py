"""`cdc status --metrics FILE` writes what it shows in the text format of Prometheus."""

from __future__ import annotations

import os
import shutil
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from tests import commands
from tests.postgres.test_snapshot_log import sql
from tests.support_lake import plain_lake
from toolkit.cli import main
from toolkit.ops import metrics, status_report
from toolkit.rawlog.states import State
from toolkit.source import connection, slot
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]

Found = dict[tuple[str, str], float]


@pytest.fixture
def config(source: Config, plain_lake: Config) -> Config:
    """A captured table with an odd name, drained."""
    made = source.model_copy(update={"root": plain_lake.root})
    sql(made, 'create table public."a ""\\ b" (id int primary key)', 'insert into public."a ""\\ b" values (1)')
    commands.init(made)
    commands.drain(made)
    return made


def _read(path: Path) -> Found:
    """Read the samples by metric and its own label, and see that each has the labels of the lake."""
    found: Found = {}
    for family in text_string_to_metric_families(path.read_text(encoding="utf-8")):
        assert family.type == "gauge" and family.documentation
        for sample in family.samples:
            own = [value for name, value in sample.labels.items() if name not in ("lake", "prefix")]
            assert {"lake", "prefix"} <= sample.labels.keys() and (sample.name, *own) not in found
            found[sample.name, "".join(own)] = sample.value
    return found


def _written(config: Config, monkeypatch: pytest.MonkeyPatch, path: Path) -> tuple[int, str]:
    monkeypatch.setenv("CDC_SOURCE__CONNINFO", config.source.conninfo)
    monkeypatch.setenv("CDC_SOURCE__SLOT", config.source.slot)
    monkeypatch.chdir(config.root)
    done = CliRunner().invoke(main, ["status", "--metrics", str(path)])
    return done.exit_code, done.output


def test_metrics_say_what_status_says(config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "textfile" / "cdc.prom"
    assert _written(config, monkeypatch, path)[0] == 0
    found, status = _read(path), status_report.status(config)
    assert {name for name, _ in found} <= {gauge.name for gauge in metrics.GAUGES}
    assert [found[name, ""] for name in ("cdc_ok", "cdc_source_ok", "cdc_lake_ok")] == [1, 1, 1]
    assert found["cdc_committed_lsn", ""] == status.committed_lsn
    assert found["cdc_table_ok", status.tables[0].table] == 1
    assert found["cdc_slot_retained_bytes", ""] > 0 <= found["cdc_lag_bytes", ""]
    assert all(value > 1 << 20 for (name, _), value in found.items() if name == "cdc_free_bytes")
    assert ("cdc_last_check_ok", "") not in found  # there was no check
    assert [p.name for p in path.parent.iterdir()] == ["cdc.prom"]


def test_a_source_that_is_refused_turns_the_metrics_too(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with connection.connect(config.source) as conn:
        slot.drop_slot(conn, config.source.slot)
    path = tmp_path / "cdc.prom"
    assert _written(config, monkeypatch, path)[0] == 3
    found = _read(path)
    assert [found[name, ""] for name in ("cdc_ok", "cdc_source_ok", "cdc_lake_ok")] == [0, 0, 1]
    assert [value for (name, _), value in found.items() if name == "cdc_table_ok"] == [0]
    assert ("cdc_slot_retained_bytes", "") not in found


def test_a_status_that_cannot_be_read_is_not_ok(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file of an earlier run stayed, and said of a lake that is gone that all is well."""
    path = tmp_path / "cdc.prom"
    assert _written(config, monkeypatch, path)[0] == 0 and _read(path)["cdc_ok", ""] == 1
    shutil.rmtree(config.lake_access.work_dir)
    code, said = _written(config, monkeypatch, path)
    assert code == 1 and "run `cdc init`" in said
    found = _read(path)
    assert found.keys() == {("cdc_ok", ""), ("cdc_status_time_seconds", "")}
    assert found["cdc_ok", ""] == 0 and abs(time.time() - found["cdc_status_time_seconds", ""]) < 60


def test_times_are_those_of_the_proofs_and_the_worse_of_two_tables_counts(config: Config, tmp_path: Path) -> None:
    status = status_report.status(config)
    proven = replace(status.tables[0], proven_lsn=status.committed_lsn, proven_seconds=3600, checked_seconds=60)
    path, name = tmp_path / "cdc.prom", status.tables[0].table
    metrics.write(path, replace(status, tables=(proven, replace(proven, state=State.STALE))), config.lake_access)
    found = _read(path)
    assert found["cdc_table_ok", name] == 0
    assert found["cdc_table_proven_lsn", name] == status.committed_lsn
    ages = [time.time() - found[f"cdc_table_{kind}_time_seconds", name] for kind in ("proven", "full_proof")]
    assert [round(age / 60) for age in ages] == [1, 60]


def test_a_file_that_cannot_be_written_is_named(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = _written(config, monkeypatch, Path("/proc/cdc.prom"))
    assert code == 2 and "--metrics /proc/cdc.prom: " in said
    assert "name a file that can be written" in said


def test_the_collector_may_read_the_file_and_no_device_is_replaced(config: Config, tmp_path: Path) -> None:
    """The file was for its writer alone, and `--metrics /dev/null` as root would have replaced the device."""
    target, link, pipe = tmp_path / "kept.prom", tmp_path / "link.prom", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)
    umask = os.umask(0o077)
    try:
        metrics.write(link, None, config.lake_access)
    finally:
        os.umask(umask)
    assert link.is_symlink() and stat.S_IMODE(target.stat().st_mode) == 0o644
    with pytest.raises(ConfigError, match=r"pipe: it is no regular file, .*; name another file$"):
        metrics.write(pipe, None, config.lake_access)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
