"""Remember how each command last ended, in `last_run.json` beside the lake, so that `cdc status` can report it.

A command that raises an error leaves nothing in the lake. Its entry stays until that command succeeds, or `run`, which
does the work of all commands.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from toolkit.values.log_setup import logger
from toolkit.values.whole_file import write_whole

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess

NAME = "last_run.json"
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last end of a command. `at` is ISO 8601."""

    command: str
    exit_code: int
    at: str
    problem: str | None


def remember(access: LakeAccess, run: LastRun) -> None:
    """Replace the entry of the same command by this run. A successful `run` replaces all entries.

    Nothing is written if there is no lake. If the file cannot be written, this is logged.
    """
    if not access.work_dir.is_dir():
        return
    before = () if run.command == "run" and run.exit_code == 0 else last_runs(access)
    kept = [*(one for one in before if one.command != run.command), run]
    path = access.work_dir / NAME
    try:
        write_whole(path, json.dumps([asdict(one) for one in kept], ensure_ascii=False) + "\n")
    except OSError as error:
        _log.warning("the last run is not remembered", extra={"file": str(path), "reason": error.strerror})


def last_runs(access: LakeAccess) -> tuple[LastRun, ...]:
    """Read how each command last ended; empty if nothing was remembered."""
    try:
        return tuple(LastRun(**one) for one in json.loads((access.work_dir / NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return ()
