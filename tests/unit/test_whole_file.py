"""A file that cannot be written whole stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support_lake import files_below
from toolkit.lake.file_lists import listed_files
from toolkit.ops import last_run
from toolkit.quality import expectations
from toolkit.quality.report import CheckReport
from toolkit.values.config import Config
from toolkit.values.errors import LakeError
from toolkit.values.lsn import Lsn
from toolkit.values.whole_file import write_whole

pytestmark = pytest.mark.unit


def test_a_file_that_cannot_be_written_whole_stays(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    write_whole(path, "é")
    write_whole(path, b"before", mode=0o600)
    with files_below(10), pytest.raises(OSError, match="File too large"):
        write_whole(path, "x" * 100)
    assert [found.name for found in path.parent.iterdir()] == ["file"]
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("before", 0o600)


def test_the_report_of_the_last_check_is_a_whole_one(tmp_path: Path) -> None:
    """A check that was killed while it wrote left half a file, with which `last_report` failed."""
    access = Config(root=tmp_path).lake_access
    expectations.write(access, CheckReport(Lsn(0x1000), ()))
    files = {path: path.read_bytes() for path in expectations.directory(access).iterdir()}
    assert len(files) == 4
    for size in sorted({len(content) for content in files.values()}):
        with files_below(size - 1), pytest.raises(OSError, match="File too large"):
            expectations.write(access, CheckReport(Lsn(0x1000), ()))
        assert {path: path.read_bytes() for path in expectations.directory(access).iterdir()} == files
    assert expectations.last_report(access)["lsn"] == "0/1000"


def test_how_commands_ended_is_kept_where_it_cannot_be_written(tmp_path: Path) -> None:
    access = Config(root=tmp_path).lake_access
    access.work_dir.mkdir(parents=True)
    run = last_run.LastRun("drain", 0, "2026-11-27T04:00:00+00:00", None)
    last_run.remember(access, run)
    with files_below(10):
        last_run.remember(access, last_run.LastRun("drain", 1, "2026-11-27T05:00:00+00:00", "x"))
    assert last_run.last_runs(access) == (run,)


def test_a_full_disk_is_named_with_the_list_of_new_files(tmp_path: Path) -> None:
    """What was not written was written again as the list was closed: that error named no file, whatever came before."""
    access = Config(root=tmp_path).lake_access
    full = pytest.raises(LakeError, match=r"listing a new file in .*/new-files/.*: No space left on device; free space")
    with full, listed_files(access, "new-files", {}) as listed:
        listed.add("/nowhere/one")
        with files_below(20):
            listed.add("/nowhere/two")
    assert not list((access.work_dir / "new-files").iterdir())
