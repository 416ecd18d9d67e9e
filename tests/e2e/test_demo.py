"""`cdc demo` as people run it, and as they interrupt it. Whatever happens, no process and no temporary folder stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from toolkit.values.resources import ROOT

pytestmark = pytest.mark.e2e

#: What differs from run to run: seconds, counts and LSNs.
_VARIES = re.compile(r"\b[0-9A-F]+/[0-9A-F]+\b|\d[\d,.]*")


def _shape(output: str) -> list[str]:
    """Give the lines of an output without their values."""
    return [_VARIES.sub("*", " ".join(line.split())) for line in output.splitlines() if line.strip()]


class Demo:
    """A demo whose processes can all be identified by the TMPDIR that they inherit."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.directory = folder / "demo"
        # Not below pytest's own folder: that is closed to the user that the server runs as when this is root.
        self.temporary = Path(tempfile.mkdtemp(prefix="cdc-demo-test-"))
        self.temporary.chmod(0o755)
        self.output = folder / "output"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "toolkit.cli", "demo", "--directory", str(self.directory), *arguments],
                cwd=folder, env=os.environ | {"TMPDIR": str(self.temporary)}, stdout=file, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str) -> None:
        while text not in self.said:
            assert self.process.poll() is None, self.said

    def processes(self) -> list[str]:
        """Command lines of everything that the demo started and that still runs."""
        mark = f"TMPDIR={self.temporary}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # gone meanwhile, or someone else's
                continue
        return found

    def left_nothing(self) -> None:
        # Python's tracker of shared memory reads the end of its pipe only when the process that made it is gone.
        end = time.monotonic() + 10
        while any("resource_tracker" in line for line in self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        assert self.processes() == []
        kept = [path.name for path in self.temporary.iterdir() if not path.name.startswith(_SHARED)]
        assert kept == []
        assert not (self.directory.parent / "derby.log").exists()


#: Libraries that the JVM unpacks for its whole life, and its own bookkeeping: theirs to remove.
_SHARED = ("hsperfdata", "liblz4-java", "snappy-", "sqlite-", "libzstd")


@pytest.fixture
def started(tmp_path: Path, request: pytest.FixtureRequest) -> Demo:
    demo = Demo(tmp_path, *getattr(request, "param", ()))

    def end() -> None:
        if demo.process.poll() is None:
            os.killpg(demo.process.pid, signal.SIGKILL)
            demo.process.wait()
        shutil.rmtree(demo.temporary)

    request.addfinalizer(end)
    return demo


@pytest.mark.parametrize(
    "started",
    [pytest.param((), id="pg16"), pytest.param(("--postgres", "18"), id="pg18", marks=pytest.mark.long)],
    indirect=True,
)
def test_the_whole_story(started: Demo) -> None:
    assert started.process.wait(timeout=1200) == 0, started.said
    report = json.loads((started.directory / "report.json").read_text(encoding="utf-8"))
    assert [check["status"] for check in report["checks"]] == ["identical", "different", "identical"]
    assert all(check["rows"] > 100_000 and "/" in check["lsn"] for check in report["checks"])
    assert report["fault_found"] is report["healed"] is report["as_of_equal"] is True
    assert report["ddl_events"] >= 7  # one a step of the story at least
    assert report["changes"] > 500
    assert "public.customers different" in started.said
    assert "Proven in" in started.said
    for name in ("Parity", "Notebook", "SQL prompt"):
        place = next(line for line in started.said.splitlines() if line.strip().startswith(name)).split()
        assert Path(next(word for word in place if word.startswith("/"))).is_file()
    shown = _shape((ROOT / "docs" / "demo-output.txt").read_text(encoding="utf-8"))
    assert _shape(started.said.replace(str(started.directory), "./cdc-demo"))[: len(shown)] == shown
    noise = [line for line in started.said.splitlines() if "WARN" in line or "INFO" in line]
    assert noise == []
    started.left_nothing()


@pytest.mark.wide
@pytest.mark.parametrize("started", [("--cluster",)], indirect=True)
def test_the_whole_story_on_a_cluster(started: Demo) -> None:
    """The lake is in a bucket, and every server has ended with the demo."""
    assert started.process.wait(timeout=1200) == 0, started.said
    assert "Spark's master with two workers started" in started.said and "Proven in" in started.said
    assert any((started.directory / "store" / "lake" / "ware" / "house").glob("**/current/**/*.parquet"))
    assert not (started.directory / "lake" / "warehouse").exists()
    assert len(list(started.directory.glob("work-[01]/app-*/*"))) > 1  # executors have run
    started.left_nothing()


@pytest.mark.wide
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_interrupted_it_takes_everything_along(started: Demo, number: signal.Signals, code: int) -> None:
    started.wait_for("under load")
    assert len(started.processes()) > 3  # else the next question could not fail
    started.process.send_signal(number)
    assert started.process.wait(timeout=120) == code, started.said
    assert "Traceback" not in started.said
    started.left_nothing()


def test_a_folder_of_another_account_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.txt").write_text("years of work", encoding="utf-8")
    demo = Demo(tmp_path)
    assert demo.process.wait(timeout=60) == 2
    demo.temporary.rmdir()
    assert "not a folder of an earlier demo" in demo.said
    assert (tmp_path / "demo" / "thesis.txt").read_text(encoding="utf-8") == "years of work"
