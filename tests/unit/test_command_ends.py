"""However a command ends, standard error says it in one line, and `[notify]` receives what was done so far."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests import support_history as made
from toolkit.api import Toolkit
from toolkit.build import dbt_run
from toolkit.build.dbt_run import BuildResult
from toolkit.capture import runner, slot_drain
from toolkit.capture.copy import SnapshotResult
from toolkit.capture.drain_loop import DrainResult
from toolkit.cli import INTERRUPTED, frame, main
from toolkit.demo import scratch_server
from toolkit.history import ddl_lint, versions
from toolkit.ops import last_run
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.values import libraries, resources
from toolkit.values.config import Config
from toolkit.values.errors import LakeError, UnknownTable
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CheckStatus
from toolkit.values.table import TableVersion

pytestmark = pytest.mark.unit

_BUILT = BuildResult(Lsn(100), 2, 3, "current", (), own_failed=("mine: no column x",))
_RED = CheckReport(
    Lsn(100),
    (
        TableCheck("public.a", 1, CheckStatus.IDENTICAL, rows=1),
        TableCheck("public.b", 2, CheckStatus.DIFFERENT, reason="1 row modified", remedy="cdc build"),
    ),
)
_JSON = '[log]\nformat = "json"\n'


def _cdc(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str, log: str = "") -> tuple[Result, dict[str, Any]]:
    """Run a command in this process; give its result and what `[notify] command` has read."""
    script = f"import sys; open({str(folder / 'noticed')!r}, 'a').write(sys.stdin.read() + chr(10))"
    text = f"{log}[notify]\ncommand = {json.dumps([sys.executable, '-c', script])}\n"
    (folder / "cdc.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(frame, "_stop_spark", lambda **_: None)
    done = CliRunner().invoke(main, [*words, "--config", str(folder / "cdc.toml")])
    (line,) = (folder / "noticed").read_text(encoding="utf-8").splitlines()
    (folder / "noticed").unlink()
    return done, json.loads(line)


def _raise(error: Exception) -> Any:
    raise error


def _run_up_to_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "only_runner", lambda *_: nullcontext())
    monkeypatch.setattr(slot_drain, "drain", lambda *_: DrainResult(1, 7, Lsn(1), Lsn(100)))
    monkeypatch.setattr(dbt_run, "build", lambda *_: _BUILT)
    monkeypatch.setattr(Toolkit, "_check", lambda *_, **__: _raise(LakeError("lake: full; free space")))
    monkeypatch.setattr(libraries, "preload", lambda *_, **__: None)  # it would go on while the next tests run


def test_an_unforeseen_error_is_one_line_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a traceback in the middle of a JSON log, and no one was notified."""
    monkeypatch.setattr(Toolkit, "drain", lambda *_, **__: _raise(KeyError("two\nlines")))
    done, notice = _cdc(tmp_path, monkeypatch, "drain")
    (line,) = done.stderr.splitlines()
    assert line.startswith(r"cdc: unexpected KeyError: 'two\nlines' at cli/pipeline.py:")
    assert line.endswith("; run it again with --verbose and report it")
    assert (done.exit_code, notice["exit_code"], f"cdc: {notice['problem']}") == (1, 1, line)
    done, _ = _cdc(tmp_path, monkeypatch, "drain", log=_JSON)
    (event,) = map(json.loads, done.stderr.splitlines())
    assert event["event"] == notice["problem"] and event["traceback"].startswith("Traceback ")
    done, _ = _cdc(tmp_path, monkeypatch, "drain", "--verbose")
    assert done.stderr.startswith("Traceback ") and done.stderr.splitlines()[-1] == line


def test_the_traceback_of_a_known_error_is_a_field_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toolkit, "maintain", lambda _: _raise(LakeError("lake: gone; restore it")))
    done, notice = _cdc(tmp_path, monkeypatch, "maintain", "--verbose", log=_JSON)
    (event,) = map(json.loads, done.stderr.splitlines())
    assert event["event"] == notice["problem"] == "lake: gone; restore it"
    assert "LakeError" in event["traceback"]
    done, _ = _cdc(tmp_path, monkeypatch, "maintain", log=_JSON)
    assert "traceback" not in json.loads(done.stderr)


def test_a_configuration_that_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line was followed by a traceback of the notice, which reads the configuration again."""
    denied = PermissionError(13, "Permission denied")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: _raise(denied))
    monkeypatch.setattr(frame, "_stop_spark", lambda **_: None)
    (tmp_path / "cdc.toml").touch()
    for name in ("cdc.toml", "x" * 300):  # the second name is too long for a file
        done = CliRunner().invoke(main, ["run", "--config", str(tmp_path / name)])
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"cdc: {tmp_path / name}: "), line
        assert line.endswith("; change its permissions or give another --config")
        assert (done.exit_code, type(done.exception)) == (2, SystemExit)


def test_a_folder_without_a_configuration_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another folder than that of cdc.toml, `cdc status` said that the lake has no ledger, and to run `cdc init`."""
    monkeypatch.chdir(tmp_path)
    said = "cdc: lake: gone; restore it"
    monkeypatch.setattr(Toolkit, "status", lambda _: _raise(LakeError("lake: gone; restore it")))
    done = CliRunner().invoke(main, ["status"])
    assert done.stderr == f"{said}, or in the folder of cdc.toml: {tmp_path} has none\n"
    (tmp_path / "cdc.toml").touch()
    assert CliRunner().invoke(main, ["status"]).stderr == f"{said}\n"
    (tmp_path / "cdc.toml").unlink()
    monkeypatch.setenv("CDC_SOURCE__SLOT", "here")
    assert CliRunner().invoke(main, ["status"]).stderr == f"{said}\n"


def test_a_reader_of_the_result_that_ends_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cdc rows ... | head` advised to free space."""
    monkeypatch.setattr(Toolkit, "drain", lambda *_, **__: DrainResult(1, 1, Lsn(1), Lsn(2)))
    monkeypatch.setattr("toolkit.cli.output.click.echo", lambda *_, **__: _raise(BrokenPipeError(32, "Broken pipe")))
    done, notice = _cdc(tmp_path, monkeypatch, "drain")
    assert done.stderr.startswith("cdc: writing the result: the program that reads it has ended; ")
    assert (done.exit_code, notice["exit_code"]) == (1, 1)


def test_a_notice_is_sent_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk with the log on it, the command ended with a traceback, and with neither notice nor exit code."""
    (tmp_path / "lake").mkdir()
    monkeypatch.setattr(Toolkit, "drain", lambda *_, **__: _raise(UnknownTable("no table x; name another")))
    monkeypatch.setattr("builtins.print", lambda *_, **__: _raise(OSError(28, "No space left on device")))
    done, notice = _cdc(tmp_path, monkeypatch, "drain")
    (last,) = json.loads((tmp_path / "lake" / "last_run.json").read_text(encoding="utf-8"))
    assert done.exit_code == notice["exit_code"] == last["exit_code"] == UnknownTable.exit_code
    assert notice["problem"] == "no table x; name another"


def test_a_run_whose_figures_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("toolkit.cli.output.click.echo", lambda *_, **__: _raise(full))
    _run_up_to_the_check(monkeypatch)
    done, notice = _cdc(tmp_path, monkeypatch, "run", "--output", "json")
    assert (done.exit_code, notice["problem"]) == (1, "lake: full; free space")
    assert notice["result"]["drain"]["changes"] == 7
    monkeypatch.setattr(Toolkit, "drain", lambda *_, **__: DrainResult(1, 1, Lsn(1), Lsn(2)))
    done, notice = _cdc(tmp_path, monkeypatch, "drain")
    assert done.stderr == "cdc: writing the result: No space left on device; free space there, and run it again\n"


def test_a_failed_check_is_reported_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toolkit, "check", lambda *_, **__: _RED)
    done, notice = _cdc(tmp_path, monkeypatch, "check")
    assert (done.exit_code, notice["exit_code"]) == (3, 3)
    assert notice["problem"] == ("the check failed: 1 different, 1 identical; public.b: 1 row modified (cdc build)")
    assert f"cdc: {notice['problem']}\n" == done.stderr
    assert [table["remedy"] for table in notice["result"]["tables"]] == [None, "cdc build"]


def test_a_build_with_a_failing_own_model_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notice had neither problem nor result."""
    monkeypatch.setattr(Toolkit, "build", lambda *_, **__: _BUILT)
    done, notice = _cdc(tmp_path, monkeypatch, "build")
    assert (done.exit_code, notice["exit_code"]) == (1, 1)
    assert notice["problem"] == "own models in the dbt project: mine: no column x"
    assert (notice["result"]["lsn"], notice["result"]["own_failed"]) == ("0/64", ["mine: no column x"])


def test_a_view_that_is_not_moved_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check proved all tables, and readers still see what an earlier one has proven."""
    report = CheckReport(Lsn(100), _RED.tables[:1], unmoved={"published.a": "it cannot be read; run `cdc doctor`"})
    assert report.green
    monkeypatch.setattr(Toolkit, "check", lambda *_, **__: report)
    done, notice = _cdc(tmp_path, monkeypatch, "check")
    assert (done.exit_code, notice["exit_code"]) == (1, 1)
    assert notice["problem"] == "view published.a is not moved: it cannot be read; run `cdc doctor`"
    assert notice["problem"] in done.stdout and notice["result"]["unmoved"] == {**report.unmoved}


def test_a_repair_that_leaves_a_table_out_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = SnapshotResult(Lsn(100), {"public.a": 1}, {"public.b": "it is locked; run it again"})
    monkeypatch.setattr(Toolkit, "repair", lambda *_, **__: left)
    done, notice = _cdc(tmp_path, monkeypatch, "repair")
    assert (done.exit_code, notice["exit_code"]) == (3, 3)
    assert notice["problem"] == "not repaired: public.b: it is locked; run it again"
    assert notice["result"]["rows"] == {"public.a": 1}


def test_a_run_that_fails_in_the_check_keeps_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its JSON had neither drain nor build: standard output was empty."""
    _run_up_to_the_check(monkeypatch)
    done, notice = _cdc(tmp_path, monkeypatch, "run", "--output", "json")
    shown = json.loads(done.stdout)
    assert (done.exit_code, shown["drain"]["changes"], shown["build"]["batch_id"]) == (1, 7, 2)
    assert shown["problem"] == notice["problem"] == "lake: full; free space"
    assert notice["result"] == shown


_DOCTOR = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs behind it without
from toolkit.cli import run
class Begun:  # asked for a module before it is imported
    def find_spec(self, name, *_):
        if name == "toolkit.cli.commands":
            print("begun", flush=True)
sys.meta_path.insert(0, Begun())
sys.argv[1:] = ["doctor"]
run()
"""
_STOPPING = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from toolkit.cli import frame, run
def stop(*, at_once):
    print("at once" if at_once else "slowly", flush=True)
    for _ in range(0 if at_once else 300):
        time.sleep(0.1)
frame._stop_spark = stop
sys.argv[1:] = ["doctor"]
run()
"""


_DRAINING = """
import sys, time
from pathlib import Path
from toolkit.api import Toolkit
from toolkit.cli import run
Path("lake").mkdir()
def drain(*_, **__):
    print("draining", flush=True)
    time.sleep(60)
Toolkit.drain = drain
sys.argv[1:] = ["drain"]
run()
"""


#: The tests themselves may run under nohup.
_AT_A_TERMINAL = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"


def _start(folder: Path, code: str) -> subprocess.Popen[str]:
    (folder / "cdc.toml").write_text('[source]\nconninfo = "host=127.0.0.1 port=1 dbname=x"\n', encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(resources.ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("after", [0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.6])
def test_ctrl_c_while_a_command_is_imported(tmp_path: Path, after: float) -> None:
    """It gave a traceback, and exit code 1."""
    process = _start(tmp_path, _DOCTOR)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    if process.returncode != 1:
        assert (process.returncode, err) == (130, f"cdc: {INTERRUPTED}\n")
    else:  # it was done already
        assert "cannot connect to the source" in out and err == "", (out, err)


def test_ctrl_c_while_spark_is_stopped(tmp_path: Path) -> None:
    """It gave "Aborted!" and exit code 1."""
    process = _start(tmp_path, _STOPPING)
    assert process.stdout is not None
    shown = next(line for line in process.stdout if line in ("slowly\n", "at once\n"))
    assert shown == "slowly\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "at once\n")
    assert err == f"cdc: {INTERRUPTED}\n"


_SHOWS_STREAMS = """
import os, subprocess, sys
from toolkit.cli import frame, run
from toolkit.ops import new_project
def shown(folder):
    held = os.open(sys.argv[0], os.O_RDONLY)  # such as the lease, or the catalog
    child = subprocess.run(["sh", "-c", "echo lost >&2"])
    open(folder / "streams", "w").write(f"{held > 2} {child.returncode} {sys.stderr.isatty()}")
    return ()
new_project.create = shown
sys.argv[1:] = ["new", "."]
run()
"""


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_taken_by_no_file(tmp_path: Path, closed: str) -> None:
    """Each command ended with an error of Python's, or the lease took the stream that Spark's JVM writes to."""
    (tmp_path / "program").write_text(_SHOWS_STREAMS, encoding="utf-8")
    shell = ["sh", "-c", f"exec {sys.executable} program {closed}"]
    done = subprocess.run(
        shell, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(resources.ROOT)}, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "streams").read_text(encoding="utf-8") == "True 0 False"


@pytest.mark.parametrize(
    "text", [b"alter table t add caf\xe9 int;", "alter table t add x int;".encode("utf-16")], ids=["latin-1", "utf-16"]
)
def test_a_migration_in_another_encoding_is_refused_by_name(tmp_path: Path, text: bytes) -> None:
    """It ended as an unexpected error that the user was to report."""
    (tmp_path / "m.sql").write_bytes(text)
    done = CliRunner().invoke(main, ["ddl", "lint", str(tmp_path / "m.sql")])
    assert done.exit_code == 2 and done.stderr.startswith(f"cdc: {tmp_path / 'm.sql'}: not UTF-8: "), done.stderr
    assert done.stderr.endswith("; save it as UTF-8\n")


def test_a_byte_order_mark_is_no_part_of_a_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(scratch_server, "open_scratch", lambda *_, **__: nullcontext(""))

    def keep(_: object, text: str, **__: object) -> tuple[()]:
        read.append(text)
        return ()

    monkeypatch.setattr(ddl_lint, "lint", keep)
    (tmp_path / "m.sql").write_text("drop table t;", encoding="utf-8-sig")
    assert CliRunner().invoke(main, ["ddl", "lint", str(tmp_path / "m.sql")]).exit_code == 0
    assert read == ["drop table t;"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_a_scheduler_or_a_closed_terminal_ends_is_remembered_and_reported(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A run that met its limit of time each night left the last one that had succeeded as the last run."""
    process = _start(tmp_path, _AT_A_TERMINAL + _DRAINING)
    script = f"import sys; open({str(tmp_path / 'noticed')!r}, 'w').write(sys.stdin.read())"
    with (tmp_path / "cdc.toml").open("a", encoding="utf-8") as config:
        config.write(f"[notify]\ncommand = {json.dumps([sys.executable, '-c', script])}\n")
    assert process.stdout is not None and process.stdout.readline() == "draining\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (-number, f"cdc: {INTERRUPTED}\n")
    (remembered,) = last_run.last_runs(Config(root=tmp_path).lake_access)
    assert (remembered.command, remembered.exit_code) == ("drain", 128 + number)
    assert (remembered.problem or "").startswith(f"{number.name}: interrupted")
    assert json.loads((tmp_path / "noticed").read_text(encoding="utf-8"))["exit_code"] == 128 + number


def test_a_command_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    process = _start(
        tmp_path, _AT_A_TERMINAL.replace("SIG_DFL", "SIG_IGN") + _DRAINING.replace("sleep(60)", "sleep(2)")
    )
    assert process.stdout is not None and process.stdout.readline() == "draining\n"
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert process.returncode != -signal.SIGHUP and INTERRUPTED not in err


def test_a_key_that_names_a_column_twice_is_refused() -> None:
    """The second value replaced the first without a word."""
    done = CliRunner().invoke(main, ["rows", "public.a", "--key", "id=1", "--key", "id=2"])
    assert done.exit_code == 2 and "a column is named twice: ask for one key at a time" in done.output


def test_the_columns_of_a_dropped_table_are_shown_as_those_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cdc schema show` listed them like those of a table that exists."""
    shape = TableVersion.from_json(made.snapshots()[0])
    found = versions.VersionInfo(1, 9, Lsn(0x3000), None, replace(shape, dropped=True), None, ())
    monkeypatch.setattr(Toolkit, "shape", lambda *_: found)
    (tmp_path / "cdc.toml").touch()
    done = CliRunner().invoke(main, ["schema", "show", "public.orders", "--config", str(tmp_path / "cdc.toml")])
    assert done.stdout.splitlines()[0] == "public.orders (dropped at 0/3000; these were its columns)"
    assert [line.split()[:3] for line in done.stdout.splitlines()[2:3]] == [["1", "id", "bigint"]]
