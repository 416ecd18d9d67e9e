"""The command line as a process: exit codes, one line for bad input, and no JVM where none is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from toolkit.demo.server import EmbeddedServer

pytestmark = pytest.mark.e2e


def _cdc(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # A PATH without java and no JAVA_HOME: whatever starts a JVM here has to go through the bundled one and be slow;
    # the log of a JVM in the lake's folder gives it away.
    return subprocess.run(
        [sys.executable, "-m", "toolkit.cli", *arguments],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "HOME": str(directory)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _configure(directory: Path, text: str) -> Path:
    (directory / "cdc.toml").write_text(text, encoding="utf-8")
    return directory


def _refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def test_help_lists_every_command(tmp_path: Path) -> None:
    done = _cdc(tmp_path, "--help")
    assert done.returncode == 0
    for name in ("demo", "init", "uninstall", "drain", "build", "check", "run", "status", "doctor", "schema", "rows"):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[source\n", ["cdc.toml", "not valid TOML"]),
        ('[source]\nslott = "x"\n', ["source.slott", "unknown key", "did you mean slot?"]),
        ('[sauce]\nslot = "x"\n', ["sauce", "unknown key"]),
        ('[spark]\nmaster = "local[4]"\n', ["did you mean 'spark.master'?"]),
        ('[lake]\nwarehouse = "s3a://bucket/lake"\n', ["lake.warehouse", "s3a: is not supported"]),
        ('[source]\nslot = "Not-A-Slot"\n', ["source.slot", "Not-A-Slot"]),
        ("[drain]\nmax_changes = 0\n", ["drain.max_changes", "0"]),
    ],
)
def test_a_bad_configuration_is_named_by_its_key(tmp_path: Path, text: str, words: list[str]) -> None:
    _refused(_cdc(_configure(tmp_path, text), "status"), 2, *words)


def test_a_missing_configuration_file_is_named(tmp_path: Path) -> None:
    _refused(_cdc(tmp_path, "status", "--config", "nowhere.toml"), 2, "nowhere.toml")


def test_a_malformed_lsn_is_a_usage_error(tmp_path: Path) -> None:
    _refused(_cdc(tmp_path, "drain", "--upto-lsn", "12345"), 2, "12345", "0/16B3748")


def test_a_time_needs_its_offset(tmp_path: Path) -> None:
    _refused(_cdc(tmp_path, "rows", "t", "--as-of", "2026-11-20 12:00"), 2, "offset from UTC")
    _refused(_cdc(tmp_path, "rows", "t", "--as-of", "yesterday"), 2, "0/16B3748", "2026-11-20 12:00+01")
    _refused(_cdc(_configure(tmp_path, ""), "rows", "t", "--as-of", "2026-11-20 12:00+01"), 1, "cdc init")


def test_a_repair_takes_one_scope_of_one_table(tmp_path: Path) -> None:
    _configure(tmp_path, "")
    _refused(_cdc(tmp_path, "repair", "public.t", "--columns", "a", "--partition", "public.p"), 2, "exclude each other")
    _refused(_cdc(tmp_path, "repair", "--columns", "a"), 2, "exactly one table")
    for option in ("--columns", "--partition"):  # it copied the whole table
        _refused(_cdc(tmp_path, "repair", "public.t", option, ""), 2, f"{option}: it is empty")
    _refused(_cdc(tmp_path, "repair", "public.t", "--rows", '{"id": "1"}', "--differing"), 2, "exclude each other")
    _refused(_cdc(tmp_path, "repair", "--differing"), 2, "exactly one table")
    _refused(_cdc(tmp_path, "repair", "public.t", "--differing"), 2, "public.t", "no captured table has that name")
    for text, word in (
        ("id=1", "no JSON"),
        ("[]", "expected"),
        ('[{"id": 1}]', "expected"),
        ('{"a": "\\ud800"}', "JSON"),
    ):
        _refused(_cdc(tmp_path, "repair", "public.t", "--rows", text), 2, "--rows", word)


def test_without_a_ledger_status_says_what_to_run(tmp_path: Path) -> None:
    _refused(_cdc(_configure(tmp_path, ""), "status"), 1, "cdc init")


def test_no_server_is_one_line(tmp_path: Path) -> None:
    _configure(tmp_path, '[source]\nconninfo = "host=127.0.0.1 port=1 dbname=x"\n')
    _refused(_cdc(tmp_path, "init"), 1, "127.0.0.1")
    assert not (tmp_path / "lake" / "catalog.db").exists()


def test_a_wrong_password_is_one_line_without_the_password(tmp_path: Path, pg16: EmbeddedServer) -> None:
    with psycopg.connect(pg16.conninfo(), autocommit=True) as conn:
        conn.execute("drop role if exists cdc_cli")
        conn.execute("create role cdc_cli login password 'right'")
        port = conn.info.port
    _configure(
        tmp_path, f'[source]\nconninfo = "host=127.0.0.1 port={port} dbname=postgres user=cdc_cli password=s3cret"\n'
    )
    done = _cdc(tmp_path, "init")
    _refused(done, 1, "cdc_cli")
    assert "s3cret" not in done.stderr


def test_an_unwritable_lake_is_refused_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file where the lake should be", encoding="utf-8")
    _refused(_cdc(_configure(tmp_path, ""), "init"), 1, "lake")


def test_a_second_runner_learns_who_holds_the_lease(tmp_path: Path) -> None:
    from toolkit.lake.lease import hold_lease
    from toolkit.values import config

    _configure(tmp_path, "")
    with hold_lease(config.load(str(tmp_path / "cdc.toml")).lake_access):
        _refused(_cdc(tmp_path, "drain"), 4, "lease")
    # The planted fault of this file: without the lease the same command fails for another reason.
    assert _cdc(tmp_path, "drain").returncode == 1


def test_json_goes_to_stdout_alone(tmp_path: Path) -> None:
    _configure(tmp_path, '[source]\nconninfo = "host=127.0.0.1 port=1 dbname=x"\n')
    done = _cdc(tmp_path, "doctor", "--output", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert any(d["level"] == "error" and "127.0.0.1" in d["found"] for d in found)
    assert not list(tmp_path.rglob("spark.log"))
