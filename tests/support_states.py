"""Logs of one table made from short sequences of letters, and what must be said of it after each letter.

W whole baseline, P baseline of a part, G gap, V a check that compares all rows, R rename, D drop, N re-creation under
the same name. What must be said follows from the letters alone, step by step, without positions or LSNs.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.dbt.scenario import column
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.values.lsn import Lsn

LETTERS = "WPGVRDN"
START, STEP = 0x1000, 8
#: The rows are known: `ok` always, `whole` after a copy of all rows that no check has proven yet.
KNOWN = ("ok", "whole")


@dataclass
class Life:
    """One table, and its phase from each LSN on.

    Phases: `none` without a complete copy, `ok`, `broken` after a gap, `part` and `whole` after a repair of it.
    """

    relid: int
    name: str
    phases: list[tuple[int, str, str]] = field(default_factory=list)  # LSN, letter, phase
    phase: str = "none"
    part: bool = False  # a part was copied since the last whole copy or check
    stale: int | None = None  # LSN of the first gap that no proof has ended
    unknown: int | None = None  # LSN of the first gap that no complete copy or check has ended
    repaired: int | None = None
    dropped: bool = False

    def follow(self, letter: str, lsn: int) -> bool:
        """Take one letter; True if a check notes a baseline."""
        noted = False
        if letter == "W" and self.phase != "broken" and self.phase not in ("part", "whole"):
            self.phase, self.part = "ok", False
        elif letter == "W":
            self.phase, self.part, self.repaired, self.unknown = "whole", False, lsn, None
        elif letter == "P" and self.phase != "none":
            self.part = True
            if self.phase != "ok":
                self.repaired = lsn
            if self.phase == "broken":
                self.phase = "part"
        elif letter == "G" and self.phase != "none":
            self.phase, self.repaired = "broken", None
            self.stale, self.unknown = self.stale or lsn, self.unknown or lsn
        elif letter == "V" and self.phase not in ("none", "broken"):
            noted, self.part = self.part, False
            self.phase, self.stale, self.unknown, self.repaired = "ok", None, None, None
        elif letter == "D":
            self.dropped = True
        self.phases.append((lsn, letter, self.phase))
        return noted

    def unverified(self, start: int) -> bool:
        """Whether a row version that began at a step and still exists may be wrong somewhere in its life."""
        letters = "".join(letter for _, letter, _ in self.phases)
        at = start
        if self.phases[start][2] == "part":  # it is of the copy or later: right, if the next event is a check
            at = next((i for i in range(start + 1, len(letters)) if letters[i] in "WGV"), -1)
            if at < 0 or letters[at] != "V":
                return True
        return any(phase not in KNOWN for _, _, phase in self.phases[at:])


class Played:
    """The log of one sequence. `proofs` has the newest LSN at which a check found each table equal."""

    def __init__(self, letters: str, relid: int = 1) -> None:
        self.letters, self.head = letters, START + STEP * len(letters)
        self.events: list[Event] = []
        self.proofs: dict[int, Lsn] = {}
        self.notes: dict[int, int] = {}  # by LSN of a check, the table whose baseline it noted
        self.lives = [Life(relid, f"t{relid}")]
        self._version(START, order.COPIED_VERSION)
        for number, letter in enumerate(letters, 1):
            self._play(letter, START + STEP * number)

    def _play(self, letter: str, lsn: int) -> None:
        life = self.lives[-1]
        if letter == "N":
            self.lives.append(Life(life.relid + 100_000, life.name))
            self._version(lsn, order.BIRTH)
            self._event("baseline", lsn, order.BIRTH, {"scope": "all"})
            self.lives[-1].follow("W", lsn)
            return
        if letter == "V" and life.phase not in ("none", "broken"):
            self.proofs[life.relid] = Lsn(lsn)
        noted = life.follow(letter, lsn)
        if noted:
            self.notes[lsn] = life.relid
            self._event("baseline", lsn, order.BASELINE, {"scope": "check"})
        if letter in "WP":
            self._event("baseline", lsn, order.BASELINE, {"scope": "all" if letter == "W" else "columns"})
        elif letter == "G":
            self._event("gap", lsn, order.COPY_GAP, {"reason": f"gap at {lsn}"})
        elif letter in "RD":
            life.name += "r" if letter == "R" else ""
            self._version(lsn, order.found_version(0))

    def _version(self, lsn: int, ordinal: int) -> None:
        life = self.lives[-1]
        payload: dict[str, Any] = {
            "relid": life.relid, "schema": "public", "name": life.name, "kind": "r", "persistence": "p",
            "replica_identity": "d", "key_attnums": [1], "primary_key": [1], "columns": [column(1, "a")],
            "parents": [], "children": [], "published": True, "row_filter": None, "dropped": life.dropped,
        }  # fmt: skip
        self._event("schema", lsn, ordinal, payload)

    def _event(self, kind: str, lsn: int, ordinal: int, payload: dict[str, Any]) -> None:
        more: dict[str, Any] = {"relid": self.lives[-1].relid, "schema_id": lsn, "payload": json.dumps(payload)}
        more |= order.made_at(lsn)._asdict()
        self.events.append(Event(batch_id=1, generation=1, ordinal=ordinal, kind=kind, **more))


def batch(head: int, batch_id: int = 1) -> Event:
    """The ledger row of a log that is complete to an LSN."""
    record = BatchRecord(
        batch_id=batch_id, generation=1, from_lsn=Lsn(START), upto_lsn=Lsn(head), complete_to=Lsn(head), origin="slot",
        slot="cdc", identity=SourceIdentity("1", 1, 1, {"cdc": 1}), changes=0, committed_at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    return Event(
        batch_id=batch_id, generation=1, commit_lsn=head - 1, ordinal=order.BATCH, end_lsn=head, kind="batch",
        payload=record.to_json(),
    )  # fmt: skip


def sequences(length: int, letters: str = LETTERS) -> Iterator[str]:
    """All sequences up to a length that a source can make: nothing but a re-creation follows a drop."""
    for n in range(length + 1):
        for found in map("".join, itertools.product(letters, repeat=n)):
            dropped = found.split("D")[1:]
            if all(not rest or rest[0] == "N" for rest in dropped) and found.count("N") == sum(map(bool, dropped)):
                yield found
