"""Which process `cdc status` and `cdc doctor` name as the holder of the lease."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path

import pytest

from tests.support_lake import files_below
from toolkit.lake.lease import LEASE_NAME, hold_lease, holder
from toolkit.values.config import Config, LakeConfig
from toolkit.values.errors import LakeError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("host", [socket.gethostname(), "a-container-that-is-gone"])
def test_a_killed_runner_whose_number_another_process_has_holds_no_lease(tmp_path: Path, host: str) -> None:
    """An hour later, both commands were not ok until the next run, and advised to kill that other process."""
    access = Config(root=tmp_path).lake_access
    with hold_lease(access):
        found = holder(access)
        assert found is not None and found.pid == os.getpid()
    assert holder(access) is None
    left = f"pid {os.getpid()} on {host} since 2026-01-01T00:00:00Z\n"
    (access.work_dir / LEASE_NAME).write_text(left, encoding="utf-8")
    assert holder(access) is None
    with hold_lease(access):
        assert holder(access) is not None


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An NFS without them: the error named no file, and advised to free space."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    access = Config(root=tmp_path).lake_access
    monkeypatch.setattr(fcntl, "flock", refused)
    with (
        pytest.raises(LakeError, match=r"the lease file .*/lease cannot be locked: No locks .*; set \[lake\] work_dir"),
        hold_lease(access),
    ):
        pass


def test_a_full_disk_is_named_with_the_lease(tmp_path: Path) -> None:
    """The error named no file: "No space left on device; free space or correct permissions there"."""
    access = Config(root=tmp_path).lake_access
    message = r"the lease file .*/lease cannot be written: File too large; free space there"
    with files_below(0), pytest.raises(LakeError, match=message), hold_lease(access):
        pass
    with hold_lease(access):
        assert holder(access) is not None


def test_two_lakes_in_one_folder_need_work_folders_of_their_own(tmp_path: Path) -> None:
    """A run of the one that succeeded removed what `cdc status` knew of a failed run of the other."""
    one, other, apart = (
        Config(root=tmp_path, lake=LakeConfig(warehouse=f"lakes/{name}", work_dir=folder)).lake_access
        for name, folder in (("one", None), ("other", None), ("other", "work"))
    )
    for access in (one, one, apart):
        with hold_lease(access):
            pass
    with pytest.raises(LakeError, match=r"work_dir .*/lakes is .* 'one', .* 'other'; .* remove"), hold_lease(other):
        pass
    with hold_lease(one):
        assert holder(one) is not None
    with hold_lease(Config(root=tmp_path).lake_access):  # the default folders
        pass
    moved = Config(root=(tmp_path / "lakes").rename(tmp_path / "moved"), lake=LakeConfig(warehouse="one"))
    with hold_lease(moved.lake_access):
        pass
