"""Remove one guard at a time from a copy of the tree, and see that the test named for it fails.

`python -m tests.mutants [WORD ...]` runs the guards whose names hold one of the words; all without any. The tests run
once with all guards first: a test that fails there, or of which nothing runs, proves nothing about its guard.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from tests.mutants.guards import GUARDS
from tests.mutants.guards_of_source import Guard

_ROOT = Path(__file__).parents[2]
_COPIED = ("toolkit", "dbt_cdc_toolkit.py", "sql", "dbt_project", "notebooks", "tests", "pyproject.toml")
_SECONDS = 600

KILLED, SURVIVED = "killed", "SURVIVED"
UNSOUND, EMPTY, BROKEN = "FAILS WITH THE GUARD", "RAN NOTHING", "NO RESULT"


def of_mutant(guard: Guard, tree: Path) -> str:
    """Say what the guard's test does without the guard, and put the guard back."""
    file = tree / guard.file
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace(guard.text, guard.without, 1), encoding="utf-8")
    try:
        found = fates([guard.test], tree, "-x")[guard.test]
    finally:
        file.write_text(whole, encoding="utf-8")
    return {"failed": KILLED, "passed": SURVIVED}.get(found, found)


def fates(tests: Iterable[str], tree: Path, *options: str) -> dict[str, str]:
    """Run tests together; say of each whether one of its cases failed, or some passed and none failed."""
    chosen = sorted(set(tests))
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long"]
    command += [*options, f"--junitxml={report}", *chosen]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    limit = _SECONDS * len(chosen)
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"no end after {limit} s", flush=True)
        return dict.fromkeys(chosen, BROKEN)
    if done.returncode not in (0, 1, 5):  # 1: some failed; 5: no case was chosen
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", flush=True)
        return dict.fromkeys(chosen, BROKEN)
    reported = list(ElementTree.parse(report).iter("testcase"))
    if not options:  # with all guards: why a test proves nothing
        for case in (case for case in reported if _outcome(case) == "failed"):
            print(f"{case.get('classname')}::{case.get('name')} failed:", (case[0].text or "")[-2000:], flush=True)
    cases = [(f"{case.get('classname')}::{case.get('name')}".partition("[")[0], _outcome(case)) for case in reported]
    return {test: _together(test, cases) for test in chosen}


def _outcome(case: ElementTree.Element) -> str:
    tags = {child.tag for child in case}
    return "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"


def _together(test: str, cases: list[tuple[str, str]]) -> str:
    file, _, name = test.partition("::")
    module = file.removesuffix(".py").replace("/", ".")
    found = {
        fate for case, fate in cases if case == f"{module}::{name}" or (not name and case.startswith(f"{module}::"))
    }
    return "failed" if "failed" in found else "passed" if "passed" in found else EMPTY


def main(words: list[str]) -> int:
    """Print a line for each guard and the score; 1 unless each mutant was killed."""
    chosen = [guard for guard in GUARDS if not words or any(word in guard.name for word in words)]
    killed = 0
    with tempfile.TemporaryDirectory(prefix="cdc-mutants-") as folder:
        tree = Path(folder)
        for name in _COPIED:
            source, ignored = _ROOT / name, shutil.ignore_patterns("__pycache__", "target", "logs")
            if source.is_dir():
                shutil.copytree(source, tree / name, symlinks=True, ignore=ignored)
            else:
                shutil.copy(source, tree / name)
        with_guards = fates((guard.test for guard in chosen), tree)
        for guard in chosen:
            began = time.monotonic()
            sound = with_guards[guard.test]
            fate = of_mutant(guard, tree) if sound == "passed" else UNSOUND if sound == "failed" else sound
            killed += fate == KILLED
            said = f": {guard.test}" if fate != KILLED else ""
            print(f"{fate:8} {guard.name} ({time.monotonic() - began:.0f} s){said}", flush=True)
    print(f"{killed} of {len(chosen)} mutants killed")
    return killed < len(chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
