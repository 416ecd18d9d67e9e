"""The table of what becomes of each trap on each server, from played traps: `python -m tests.conformance` writes it.

A test holds the written table against what it finds, so no row of it is by hand.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.trap_cases import TRAPS, Trap

if TYPE_CHECKING:
    from tests.postgres.test_traps import Played

FILE = Path(__file__).parent / "CONFORMANCE.md"
_HEAD = """# What becomes of it

Each trap of `tests/postgres/traps.sql`, played on real servers; written by `python -m tests.conformance`.
*exact*: at every drain, and as of every earlier drain, the tables equal what SELECT showed. *stale*: red by name from
the LSN of the change on, and exact again after `cdc repair` (*healed*). *gone*: dropped, and nothing else.

| trap | what is done | 15 | 16 | 18 |
|---|---|---|---|---|
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


def done(trap: Trap) -> str:
    """The commands that make the trap, shortened."""
    steps = [step.removeprefix("b:").strip() for phase in trap.phases for step in phase]
    commands = [s for s in steps if re.match(r"(alter|create|drop|truncate|vacuum|cluster|do|select .* into)\b", s)]
    text = "; ".join(commands or steps)
    short = text if len(text) <= 110 else text[:107] + "..."
    return "`" + short.replace("|", "\\|") + "`"


def render(found: Mapping[int, Mapping[str, str]]) -> str:
    """The file. `found` has the outcomes by major and trap."""
    lines = []
    for name, trap in TRAPS.items():
        title = re.sub(r"^(\d+) ", r"\1 · ", name.removeprefix("test_trap_").replace("_", " "))
        cells = [title, done(trap), *(found[major][name] for major in (15, 16, 18))]
        lines.append("| " + " | ".join(cells) + " |")
    return _HEAD + "\n".join(lines) + "\n"


def written() -> dict[int, dict[str, str]]:
    """The outcomes that the file tells, by major and trap."""
    rows = [line for line in FILE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d", line)]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    return {
        major: {name: row[2 + place] for name, row in zip(TRAPS, cells, strict=True)}
        for place, major in enumerate((15, 16, 18))
    }


def main() -> None:
    """Play all traps on all servers and write the file."""
    from tests.postgres.test_traps import configured, play
    from tests.support_postgres import fresh_database, serve

    found: dict[int, dict[str, str]] = {}
    for major in (15, 16, 18):
        with serve(major) as server, fresh_database(server) as conninfo, tempfile.TemporaryDirectory() as folder:
            for played in play(configured(conninfo, major), Path(folder), TRAPS):
                found[major] = {name: outcome(played, trap) for name, trap in TRAPS.items()}
    FILE.write_text(render(found), encoding="utf-8")


if __name__ == "__main__":
    main()
