"""Write the table of the effect of each kind of DDL on each server, from played traps.

`python -m tests.conformance` writes it; `python -m tests.conformance log 16` plays one layer, or one server, again,
`... new` only what has no cell there. A class that is not what was observed fails it. Tests hold the written table
against what they find: no row is by hand.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.trap_cases import GROUPS, TRAPS, Trap
from toolkit.history import effects
from toolkit.history.effects import EffectClass
from toolkit.rawlog.event import Kind

if TYPE_CHECKING:
    from tests.e2e.test_traps_path import Checked
    from tests.postgres.test_traps import Played

FILE = Path(__file__).parent / "CONFORMANCE.md"
MAJORS = (15, 16, 18)
LAYERS = ("log", "path")
_HEAD = """# DDL conformance

Each row is a trap of `tests/postgres/traps.sql`, played on real servers. Servers with the same result share a row.
`python -m tests.conformance` writes this file.

**class** is the class of the DDL in `cdc ddl list`, the worst one for each table:

- *exact*: the shape, name or key changed, or the table came or went. Rows stay as they were captured.
- *applied by rule*: the DDL event says how to show older rows: a default, a renamed label or a wider type.
- *silent*: values changed without a row event. The table must be copied again.
- *history only*: only the declaration changed, or rows that are not captured.
- *no effect*: nothing changed.
- *rows*: there was no DDL event.

**log** compares the rows of the log with SELECT:

- *exact*: equal at every drain, and as of every earlier drain.
- *stale*: the table is stale from the LSN of the change. It is *repaired* if the command that `cdc status` printed
  made it exact again.
- *gone*: the table was dropped.
- *not captured*: no publication has the table. It is stale if `[source]` selects it.

**whole path** runs init, drains, build and check:

- *identical*: the check proved every cell of `current`.
- *stale*: the check refused the table. It is *repaired* if the check proved every cell after the command.

**remedy** has that command, for a table `T`.

| trap | what is done | PostgreSQL | class | log | whole path | remedy |
|---|---|---|---|---|---|---|
"""
_TAIL = """
## DDL without a row

- DROP, RENAME and CREATE of a publication under a used name start another history. `cdc drain` refuses and names
  `cdc init --new-generation`. Test: `tests/postgres/test_trap_publications.py`.
- Databases, roles, tablespaces, ALTER SYSTEM, event triggers of others, LISTEN, COPY, subscriptions, functions and
  foreign servers change nothing that is captured. What they do to rows arrives as row events.
- CREATE SCHEMA with elements is captured as CREATE TABLE for each of them. Test: `tests/postgres/test_capture.py`.
- pg_repack swaps files without DDL. Its tables turn stale, although no row changes. Tools that swap two tables by name
  have the rows of trap 083.
- Tables that the script of an extension makes are found by the comparison of the next drain.
"""


@dataclass(frozen=True)
class Found:
    """What was found of one trap on one server, as the table says it."""

    kind: str = ""
    log: str = ""
    path: str = ""
    remedy: str = ""
    contradictions: tuple[str, ...] = ()

    @property
    def of_the_log(self) -> tuple[str, str, str]:
        return self.kind, self.log, self.remedy


def found(played: Played | None, trap: Trap) -> Found:
    """The class of each table of a trap, what was observed of it, and where the two contradict each other."""
    if played is None or trap.schema in played.skipped:
        return Found("", "not there")
    if trap.schema in played.failed:
        return Found("", "failed", contradictions=(played.failed[trap.schema],))
    log, (at, shown) = played.log, played.shown[-1]
    results: dict[int, list[EffectClass]] = {}
    for (_, commit, _, relid), one in played.classes.items():
        if commit < at:
            results.setdefault(relid, []).append(one)
    for event in log.reading().rows(Kind.DDL):
        for table in json.loads(event["payload"])["tables"]:
            results.setdefault(int(table["relid"]), [])
    kinds, observed, remedies, wrong = set(), set(), set(), []
    states = {state.relid: state for state in played.states.values()}
    for relid, version in log.reading().latest_versions(at).items():
        table, state = version.table, states.get(relid)
        if not trap.owns(table.schema):
            continue
        kind = effects.worst(results.get(relid, ()))
        kinds.add(kind if relid in results else "rows")
        if table.dropped:
            continue
        if state is None or state.parts:  # a view over its partitions has no rows of its own
            observed.add("not captured")
        elif log.unverified(relid, at) or not state.comparable:
            mended = "repaired" if table.identifier not in played.unrepaired else "not repaired"
            observed.add(f"stale, {mended}")
            steps = ", then ".join(played.remedies.get(table.identifier, ["nothing"]))
            remedies.add("`" + steps.replace(table.identifier, "T") + "`")
            if kind != EffectClass.SILENT or mended != "repaired":
                wrong.append(f"{table.identifier}: {kind}, and stale, {mended}")
        else:
            right = log.rows(relid, at) == shown[relid]
            observed.add("exact" if right else "wrong")
            if kind == EffectClass.SILENT or not right:
                wrong.append(f"{table.identifier}: {kind}, and {'exact' if right else 'wrong'}")
    if kinds - {"rows"}:
        kinds -= {"rows"}
    return Found(
        _joined(kinds), _joined(observed) or "gone", "", _joined(remedies), tuple(wrong)
    )  # fmt: skip


def path_found(checked: Checked, trap: Trap) -> str:
    """What the checks said of one trap on one server."""
    if trap.schema in checked.skipped:
        return "not there"
    if trap.schema in checked.failed:
        return "failed"
    results = set()
    for table, first in checked.first.items():
        if trap.owns(table.partition(".")[0]):
            repaired = table in checked.repaired and checked.repaired[table].status == "identical"
            results.add(
                f"stale, {'repaired' if repaired else 'not repaired'}" if first.status == "stale" else first.status
            )
    return _joined(results) or "gone"


def _captured(observed: str) -> str:
    """What a check can say of it."""
    return _joined(set(observed.split("; ")) - {"not captured"})


def _joined(words: set[str]) -> str:
    return "; ".join(sorted(words))


def done(trap: Trap) -> str:
    """The commands that make the trap, shortened."""
    steps = [step.removeprefix("b:").strip() for phase in trap.phases for step in phase]
    first = (
        r"(alter|create|drop|truncate|vacuum|cluster|comment|do|set event_triggers|set cdc|select cdc|select .* into)\b"
    )
    commands = [s for s in steps if re.match(first, s.removeprefix("!").strip())]
    text = "; ".join(commands or steps)
    short = text if len(text) <= 110 else text[:107] + "..."
    return "`" + short.replace("|", "\\|") + "`"


def render(all_found: Mapping[tuple[str, int], Found]) -> str:
    """The file, from what was found by trap and major."""
    lines = []
    for name, trap in TRAPS.items():
        title = re.sub(r"^(\d+) ", r"\1 · ", name.removeprefix("test_trap_").replace("_", " "))
        same: dict[tuple[str, str, str, str], list[str]] = {}
        for major in MAJORS:
            one = all_found.get((name, major), Found())
            same.setdefault((one.kind, one.log, one.path, one.remedy), []).append(str(major))
        for (kind, log, path, remedy), majors in same.items():
            cells = (title, done(trap), ", ".join(majors), kind, log, path, remedy.replace("|", "\\|"))
            lines.append("| " + " | ".join(cells) + " |")
    return _HEAD + "\n".join(lines) + "\n" + _TAIL


def written() -> dict[tuple[str, int], Found]:
    """What the file says, by trap and major."""
    results = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if re.match(r"\| \d", line):
            cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            title, _, majors, kind, log, path, remedy = cells
            for major in majors.split(", "):
                results["test_trap_" + re.sub(r"\W+", "_", title), int(major)] = Found(kind, log, path, remedy)
    return results


def main() -> None:
    """Play all traps, on both layers and all servers or those named, and write the file.

    A server takes about a minute for the log and a quarter of an hour for the whole path.
    """
    from tests.e2e import test_traps_path as path
    from tests.postgres import test_traps as log
    from tests.support_postgres import serve

    words = sys.argv[1:]
    layers = [word for word in words if word in LAYERS] or LAYERS
    majors = [int(word) for word in words if word.isdigit()] or MAJORS
    all_found = written()
    wrong: list[str] = []
    for major, group in itertools.product(majors, GROUPS.values()):
        before = {name: all_found.get((name, major), Found()) for name in group}
        with serve(major) as server, tempfile.TemporaryDirectory() as folder:
            for layer in layers:
                traps = {n: t for n, t in group.items() if "new" not in words or not getattr(before[n], layer)}
                if not traps:
                    continue
                if layer == "log":
                    played = log.together(server, Path(folder), traps)
                    for name, trap in traps.items():
                        seen = found(played, trap)
                        wrong += [f"{name} on {major}: {said}" for said in seen.contradictions]
                        before[name] = replace(seen, path=before[name].path)
                else:
                    checked = path.play(server, Path(folder), traps)
                    for name, trap in traps.items():
                        before[name] = replace(before[name], path=path_found(checked, trap))
        for name, one in before.items():
            all_found[name, major] = one
            if one.log and one.path.replace("identical", "exact") not in ("", _captured(one.log)):
                wrong.append(f"{name} on {major}: the log says {one.log}, the whole path {one.path}")
        FILE.write_text(render(all_found), encoding="utf-8")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
