"""Random inputs for each parser of bytes that another program wrote: the right answer, or an error with a name.

`python -m tests.fuzz.parsers --seconds 600 --seed N` runs all of them; a failure prints the seed that repeats it.
"""

from __future__ import annotations

import argparse
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.unit import wire
from toolkit.decode import logged_rows
from toolkit.decode.messages import parse
from toolkit.decode.planner import plan
from toolkit.source import copytext
from toolkit.values import config, row_line
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn, parse_moment

#: Characters and pieces that mean something to one of the parsers.
_PIECES = ["", "a", "\\", '"', ",", "(", ")", "'", "{", "}", "NULL", "\\N", "é", "\U0001d11e", " "]
_PIECES += ["\t", "\n", "\r", "\b", "\v", "\x01"]
_MEMORY = 3 << 30  # bytes of address space that one input may make the process take


def text(rng: random.Random, longest: int = 8) -> str:
    """Make a short text from pieces that parsers may stumble over."""
    return "".join(rng.choice(_PIECES) for _ in range(rng.randrange(longest)))


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Change a few bytes: flip, remove, repeat, insert, or set a number to one of its bounds."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(found) + 1)
        size = rng.choice((1, 1, 2, 4, 8))
        match rng.randrange(6):
            case 0 if at < len(found):
                found[at] ^= 1 << rng.randrange(8)
            case 1:
                del found[at : at + size]
            case 2:
                found[at:at] = found[at : at + size]
            case 3:
                found[at:at] = rng.randbytes(size)
            case 4:
                found[at : at + size] = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * size
            case _:
                found[at:] = found[at : rng.randrange(at, len(found) + 1)]
    return bytes(found)


@cache
def _recorded(major: int) -> tuple[list[tuple[int, int, bytes]], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        spool, facts = wire.recorded(major, Path(folder))
        return wire.messages_of(spool), facts


def stream(rng: random.Random) -> None:
    """Decode a recorded stream in which some messages are changed, gone, repeated or swapped."""
    messages, facts = _recorded(rng.choice((16, 18)))
    messages = list(messages)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(messages))
        lsn, xid, data = messages[at]
        match rng.randrange(5):
            case 0:
                del messages[at]
            case 1:
                messages.insert(at, messages[rng.randrange(len(messages))])
            case 2:
                messages[at] = (rng.choice((0, lsn + 1, 1 << 62, -1)), rng.choice((0, xid, 0xFFFFFFFF)), data)
            case _:
                messages[at] = (lsn, xid, mutated(rng, data))
    with tempfile.TemporaryDirectory() as folder:
        spool = wire.spool(Path(folder) / "spool", messages)
        wire.decoded(plan(spool, context=wire.recorded_context(facts)))


def message(rng: random.Random) -> None:
    """Read one message that is changed, or random bytes behind a type."""
    messages, _ = _recorded(rng.choice((16, 18)))
    _, _, data = rng.choice(messages)
    parse(mutated(rng, data) if rng.random() < 0.8 else rng.choice(b"BCRYOTM").to_bytes() + rng.randbytes(40), 0)


def copied(rng: random.Random) -> None:
    """Read what COPY writes of random cells: both readers of it give the cells back."""
    width = rng.randrange(1, 4)
    rows = [[rng.choice((None, text(rng), text(rng))) for _ in range(width)] for _ in range(rng.randrange(1, 5))]
    escapes = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}

    def written(cell: str | None) -> str:
        return "\\N" if cell is None else "".join(escapes.get(c, c) for c in cell)

    lines = ["\t".join(map(written, row)).encode() + b"\n" for row in rows]
    wanted = [cell for row in rows for cell in row]
    assert copytext._one_by_one(list(lines)).to_pylist() == wanted
    assert copytext.cells(list(lines)).to_pylist() == wanted


def record(rng: random.Random) -> None:
    """Read the text of a record: of random cells it gives them back; changed, it is refused or read as it is."""
    width = rng.randrange(1, 5)
    rows = [[rng.choice((None, text(rng), text(rng))) for _ in range(width)] for _ in range(rng.randrange(1, 4))]

    def written(cell: str | None) -> str:
        if cell is None:
            return ""
        quoted = not cell or any(c in '\\",() \t\n\r\v\f' for c in cell)
        return '"' + cell.replace("\\", "\\\\").replace('"', '""') + '"' if quoted else cell

    texts = ["(" + ",".join(map(written, row)) + ")" for row in rows]
    attnums = list(range(1, width + 1))
    assert logged_rows.record_images(pa.array(texts, pa.string()), attnums, width).to_pylist() == rows
    broken = mutated(rng, rng.choice(texts).encode()).decode(errors="replace")
    try:
        logged_rows.record_images(pa.array([*texts, broken], pa.string()), attnums, width).validate(full=True)
    except logged_rows._OtherShape:
        logged_rows._by_position(pa.array([broken], pa.string()))


def line(rng: random.Random) -> None:
    """Read the line of a row as comparisons send it, also one that no server sends."""
    cells = [rng.choice((None, text(rng).encode())) for _ in range(rng.randrange(1, 5))]
    sent = struct.pack(">h", len(cells)) + b"".join(
        struct.pack(">i", -1) if cell is None else struct.pack(">i", len(cell)) + cell for cell in cells
    )
    assert row_line.cells(sent) == cells
    row_line.fields(mutated(rng, sent), {})


def configuration(rng: random.Random) -> None:
    """Load a configuration file that is changed."""
    source = b'[source]\nconninfo = "service=shop"\ntables = ["public.*", "a.b"]\nexclude = []\n[lake]\nkeep_days = 7\n'
    source += (
        b'[spark]\n"spark.sql.shuffle.partitions" = 2\n[check]\nfull_hours = 24\n[table."public.t"]\ncapture = "slot"\n'
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cdc.toml"
        file.write_bytes(mutated(rng, source))
        config.load(str(file))


def moment(rng: random.Random) -> None:
    """Read an LSN or a time."""
    given = mutated(rng, rng.choice((b"0/16B3748", b"FFFFFFFF/FFFFFFFF", b"2026-11-20 12:00+01"))).decode(
        errors="replace"
    )
    found = parse_moment(given)
    if isinstance(found, Lsn):
        assert Lsn.parse(str(found)) == found < 1 << 64


TARGETS: dict[str, Callable[[random.Random], None]] = {
    target.__name__: target for target in (stream, message, copied, record, line, configuration, moment)
}


def try_once(name: str, seed: str) -> bool:
    """Run a parser on one input. Gives whether it accepted it; any error but the toolkit's own is a failure."""
    try:
        TARGETS[name](random.Random(seed))
    except CdcError as error:
        assert str(error).strip()
        return False
    return True


def _main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--seed", default=str(time.time_ns()))
    options.add_argument("--only", choices=sorted(TARGETS))
    given = options.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    end, accepted, tried = time.monotonic() + given.seconds, dict.fromkeys(TARGETS, 0), dict.fromkeys(TARGETS, 0)
    print(f"seed {given.seed}", flush=True)
    while time.monotonic() < end:
        for name in [given.only] if given.only else TARGETS:
            seed = f"{given.seed}:{name}:{tried[name]}"
            tried[name] += 1
            try:
                accepted[name] += try_once(name, seed)
            except BaseException:
                print(f"failed: try_once({name!r}, {seed!r})", flush=True)
                raise
    for name, count in tried.items():
        print(f"{name}: {count} inputs, {accepted[name]} accepted, the others refused by name")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
