"""Remove one guard at a time from a copy of the tree, and see that the test named for it fails.

`python -m tests.mutants [WORD ...]` runs the guards whose names hold one of the words; all without any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.guards import GUARDS
from tests.mutants.guards_of_source import Guard

_ROOT = Path(__file__).parents[2]
_COPIED = ("toolkit", "sql", "dbt_project", "notebooks", "tests", "pyproject.toml")
_SECONDS = 600


def killed(guard: Guard, tree: Path) -> bool:
    """Say whether the guard's test fails without the guard, and puts the guard back."""
    file = tree / guard.file
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace(guard.text, guard.without, 1), encoding="utf-8")
    try:
        return _outcome(guard, tree) == 1  # pytest: tests were run, and some failed
    finally:
        file.write_text(whole, encoding="utf-8")


def _outcome(guard: Guard, tree: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not long", guard.test]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode not in (0, 1):
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", flush=True)
    return done.returncode


def main(words: list[str]) -> int:
    """Print a line for each guard and the score; 1 if a mutant survived."""
    chosen = [guard for guard in GUARDS if not words or any(word in guard.name for word in words)]
    alive = []
    with tempfile.TemporaryDirectory(prefix="cdc-mutants-") as folder:
        tree = Path(folder)
        for name in _COPIED:
            source, ignored = _ROOT / name, shutil.ignore_patterns("__pycache__", "target", "logs")
            if source.is_dir():
                shutil.copytree(source, tree / name, symlinks=True, ignore=ignored)
            else:
                shutil.copy(source, tree / name)
        for guard in chosen:
            began = time.monotonic()
            if not killed(guard, tree):
                alive.append(guard)
            fate = "SURVIVED" if guard in alive else "killed"
            print(f"{fate:8} {guard.name} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants killed")
    return bool(alive)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
