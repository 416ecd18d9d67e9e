"""The table of what becomes of each trap on each server, from played traps.

`python -m tests.conformance` writes it, `python -m tests.conformance 16` plays again on one server only. Tests hold the
written table against what they find, so no row of it is by hand.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.trap_cases import TRAPS, Trap

if TYPE_CHECKING:
    from tests.e2e.test_traps_path import Checked
    from tests.postgres.test_traps import Played

FILE = Path(__file__).parent / "CONFORMANCE.md"
MAJORS = (15, 16, 18)
COLUMNS = tuple(f"{layer} {major}" for layer in ("log", "path") for major in MAJORS)
_HEAD = """# What becomes of it

Each trap of `tests/postgres/traps.sql`, played on real servers; written by `python -m tests.conformance`.

The log: *exact*: at every drain, and as of every earlier drain, the rows equal what SELECT showed. *stale*: red by name
from the LSN of the change on, and exact again after `cdc repair` (*healed*). *gone*: dropped, and nothing else.

The whole path (init, drains, build, check): *identical*: the check proved every cell of `current`. *stale*: the check
refused by name, and after `cdc repair` proved every cell (*healed*).

| trap | what is done | log 15 | 16 | 18 | path 15 | 16 | 18 |
|---|---|---|---|---|---|---|---|
"""


def outcome(played: Played, trap: Trap) -> str:
    """What was found of one trap on one server."""
    if trap.schema in played.skipped:
        return "not there"
    if trap.schema in played.failed:
        return "failed"
    at, shown = played.shown[-1]
    found = set()
    for relid in shown:
        table = played.log.version(relid, at)
        if table is not None and table.schema == trap.schema:
            doubt = played.log.doubtful(relid, at)
            mended = "healed" if table.identifier not in played.healed else "not healed"
            exact = doubt is None and played.log.rows(relid, at) == shown[relid]
            found.add("exact" if exact else "wrong" if doubt is None else f"stale, {mended}")
    return "; ".join(sorted(found)) or "gone"


def path_outcome(checked: Checked, trap: Trap) -> str:
    """What the checks said of one trap on one server."""
    if trap.schema in checked.skipped:
        return "not there"
    if trap.schema in checked.failed:
        return "failed"
    found = set()
    for table, first in checked.first.items():
        if table.partition(".")[0] == trap.schema:
            healed = table in checked.healed and checked.healed[table].status == "identical"
            found.add(f"stale, {'healed' if healed else 'not healed'}" if first.status == "stale" else first.status)
    return "; ".join(sorted(found)) or "gone"


def done(trap: Trap) -> str:
    """The commands that make the trap, shortened."""
    steps = [step.removeprefix("b:").strip() for phase in trap.phases for step in phase]
    commands = [s for s in steps if re.match(r"(alter|create|drop|truncate|vacuum|cluster|do|select .* into)\b", s)]
    text = "; ".join(commands or steps)
    short = text if len(text) <= 110 else text[:107] + "..."
    return "`" + short.replace("|", "\\|") + "`"


def render(found: Mapping[str, Mapping[str, str]]) -> str:
    """The file. `found` has the outcomes by column ("log 15", "path 18") and trap."""
    lines = []
    for name, trap in TRAPS.items():
        title = re.sub(r"^(\d+) ", r"\1 · ", name.removeprefix("test_trap_").replace("_", " "))
        cells = [title, done(trap), *(found[column].get(name, "") for column in COLUMNS)]
        lines.append("| " + " | ".join(cells) + " |")
    return _HEAD + "\n".join(lines) + "\n"


def written() -> dict[str, dict[str, str]]:
    """The outcomes that the file tells, by column and trap."""
    found: dict[str, dict[str, str]] = {column: {} for column in COLUMNS}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if re.match(r"\| \d", line):
            title, _, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            for column, cell in zip(COLUMNS, cells, strict=True):
                found[column]["test_trap_" + re.sub(r"\W+", "_", title)] = cell
    return found


def main() -> None:
    """Play all traps on the servers named, or on all, and write the file. A server takes about six minutes."""
    from tests.e2e import test_traps_path as path
    from tests.postgres import test_traps as log
    from tests.support_postgres import fresh_database, serve

    found = written()
    for major in map(int, sys.argv[1:] or MAJORS):
        with serve(major) as server, tempfile.TemporaryDirectory() as folder:
            with fresh_database(server) as conninfo:
                for played in log.play(log.configured(conninfo, major), Path(folder), TRAPS):
                    found[f"log {major}"] = {name: outcome(played, trap) for name, trap in TRAPS.items()}
            checked = path.play(server, Path(folder), TRAPS)
            found[f"path {major}"] = {name: path_outcome(checked, trap) for name, trap in TRAPS.items()}
        FILE.write_text(render(found), encoding="utf-8")


if __name__ == "__main__":
    main()
