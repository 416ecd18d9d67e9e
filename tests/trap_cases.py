"""The traps of `postgres/traps.sql`, which says how they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parent / "postgres" / "traps.sql"


@dataclass(frozen=True)
class Trap:
    """One trap. `phases` are its steps between drains; `stale` has a pattern of the reason by table."""

    name: str
    setup: tuple[str, ...]
    phases: tuple[tuple[str, ...], ...]
    stale: dict[str, str]
    gone: tuple[str, ...]
    needs: str | None

    @property
    def schema(self) -> str:
        return self.name.removeprefix("test_")


def read(text: str) -> dict[str, Trap]:
    """The traps of a file, by the name of their test."""
    found = {}
    for part in re.split(r"(?m)^-- trap ", text)[1:]:
        name, body = part.split("\n", 1)
        setup, steps = body.split("-- steps\n")
        found[name] = Trap(
            name,
            _statements(setup),
            tuple(_statements(phase) for phase in steps.split("-- drain\n")),
            {m[1]: m[2] for m in re.finditer(r"(?m)^-- stale (\w+): (.*)$", body)},
            tuple(" ".join(re.findall(r"(?m)^-- gone (.*)$", body)).split()),
            next(iter(re.findall(r"(?m)^-- needs (.*)$", body)), None),
        )
    return found


def _statements(text: str) -> tuple[str, ...]:
    """Statements end with a semicolon at the end of a line."""
    lines = "".join(line + "\n" for line in text.splitlines() if not line.startswith("--"))
    return tuple(s.strip() for s in lines.split(";\n") if s.strip())


TRAPS = read(FILE.read_text(encoding="utf-8"))
