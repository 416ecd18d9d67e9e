"""Random inputs for each parser of bytes that another program wrote: the right answer, or an error with a name.

`python -m tests.fuzz.parsers --seconds 600 --seed N` runs all of them in turn, guided by the lines that inputs reach. A
failure prints the call that repeats it.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import hmac
import json
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

import numpy as np
import pyarrow as pa

from tests.fuzz.guided import Corpus, changed
from tests.unit import wire
from toolkit.decode import logged_ddl, logged_rows
from toolkit.decode.messages import parse
from toolkit.decode.planner import plan
from toolkit.decode.task import Binding
from toolkit.source import copytext
from toolkit.values import config, row_line
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn, parse_moment

#: Characters and pieces that mean something to one of the parsers.
_PIECES = ["", "a", "\\", '"', ",", "(", ")", "'", "{", "}", "NULL", "\\N", "é", "\U0001d11e", " "]
_PIECES += ["\t", "\n", "\r", "\b", "\v", "\x01"]
_TURN_SECONDS = 0.5
_MEMORY = 3 << 30  # bytes of address space that one input may make the process take


def text(rng: random.Random, longest: int = 8) -> str:
    """Make a short text from pieces that parsers may stumble over."""
    return "".join(rng.choice(_PIECES) for _ in range(rng.randrange(longest)))


@cache
def _recorded(major: int) -> tuple[list[tuple[int, int, bytes]], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        spool, facts = wire.recorded(major, Path(folder))
        return wire.messages_of(spool), facts


def _part(rng: random.Random, messages: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """A few transactions in a row: an input takes as long as it has messages."""
    begins = [i for i, (*_, data) in enumerate(messages) if data[:1] == b"B"]
    first = rng.randrange(len(begins))
    return messages[begins[first] : [*begins, len(messages)][min(first + rng.randrange(1, 8), len(begins))]]


def stream(rng: random.Random) -> None:
    """Decode a recorded stream in which some messages are changed, gone, repeated or swapped."""
    messages, facts = _recorded(rng.choice((16, 18)))
    messages = _part(rng, messages)
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
                messages[at] = (lsn, xid, changed(rng, data))
    with tempfile.TemporaryDirectory() as folder:
        spool = wire.spool(Path(folder) / "spool", messages)
        wire.decoded(plan(spool, context=wire.recorded_context(facts)))


def message(rng: random.Random) -> None:
    """Read one message that is changed, or random bytes behind a type."""
    messages, _ = _recorded(rng.choice((16, 18)))
    _, _, data = rng.choice(messages)
    parse(changed(rng, data) if rng.random() < 0.8 else rng.choice(b"BCRYOTM").to_bytes() + rng.randbytes(40), 0)


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


def _record(row: list[str | None]) -> str:
    """Write a record as the server does."""

    def written(cell: str | None) -> str:
        if cell is None:
            return ""
        quoted = not cell or any(c in '\\",() \t\n\r\v\f' for c in cell)
        return '"' + cell.replace("\\", "\\\\").replace('"', '""') + '"' if quoted else cell

    return "(" + ",".join(map(written, row)) + ")"


def record(rng: random.Random) -> None:
    """Read the text of a record: of random cells it gives them back; changed, it is refused or read as it is."""
    width = rng.randrange(1, 5)
    rows = [[rng.choice((None, text(rng), text(rng))) for _ in range(width)] for _ in range(rng.randrange(1, 4))]

    texts = [_record(row) for row in rows]
    attnums = list(range(1, width + 1))
    assert logged_rows.record_images(pa.array(texts, pa.string()), attnums, width).to_pylist() == rows
    broken = changed(rng, rng.choice(texts).encode()).decode(errors="replace")
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
    row_line.fields(changed(rng, sent), {})


def configuration(rng: random.Random) -> None:
    """Load a configuration file that is changed."""
    source = b'[source]\nconninfo = "service=shop"\ntables = ["public.*", "a.b"]\nexclude = []\n[lake]\nkeep_days = 7\n'
    source += (
        b'[spark]\n"spark.sql.shuffle.partitions" = 2\n[check]\nfull_hours = 24\n[table."public.t"]\ncapture = "slot"\n'
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cdc.toml"
        file.write_bytes(changed(rng, source))
        config.load(str(file))


def moment(rng: random.Random) -> None:
    """Read an LSN or a time."""
    given = changed(rng, rng.choice((b"0/16B3748", b"FFFFFFFF/FFFFFFFF", b"2026-11-20 12:00+01"))).decode(
        errors="replace"
    )
    found = parse_moment(given)
    if isinstance(found, Lsn):
        assert Lsn.parse(str(found)) == found < 1 << 64


def ddl(rng: random.Random) -> None:
    """Decode transactions in which the JSON of a DDL message is another one that is signed all the same."""
    whole, facts = _recorded(rng.choice((16, 18)))
    key, messages, found = bytes.fromhex(facts["key"]), list[tuple[int, int, bytes]](), list[int]()
    while not found:
        messages = _part(rng, whole)
        found = [i for i, (*_, data) in enumerate(messages) if data[10:18] == b"cdc.ddl\0"]
    at = rng.choice(found)
    lsn, xid, data = messages[at]
    payload = json.loads(data[22 + 64 :])
    for _ in range(rng.choice((1, 1, 2, 4))):
        _alter(rng, payload)
    content = json.dumps(payload).encode()
    signature = hmac.new(key, content, hashlib.sha256).hexdigest().encode()
    messages[at] = (lsn, xid, wire.logical("cdc.ddl", signature + content))
    with tempfile.TemporaryDirectory() as folder:
        wire.decoded(plan(wire.spool(Path(folder) / "spool", messages), context=wire.recorded_context(facts)))
    fields = {**facts["before"], **facts["after"]}
    given = wire.context(*fields.values(), signed=wire.by_key(key), system_id=facts["system_id"])
    logged = logged_ddl.LoggedMessage(7, xid, lsn, (signature + content).decode())
    logged_ddl.fold([logged], at=Lsn(1 << 40), context=given)


def _alter(rng: random.Random, value: Any) -> None:
    """Change one place inside a JSON value, at any depth: another text, number or kind, gone, or there twice."""
    inside = [v for v in (value.values() if isinstance(value, dict) else value) if isinstance(v, dict | list) and v]
    if inside and rng.random() < 0.7:
        return _alter(rng, rng.choice(inside))
    place = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    match rng.randrange(4):
        case 0:
            del value[place]
        case 1 if isinstance(value, list):
            value.insert(place, copy.deepcopy(rng.choice(value)))
        case 2 if isinstance(value[place], str):
            value[place] = changed(rng, value[place].encode()).decode(errors="replace")
        case _:
            value[place] = rng.choice((None, True, 0, -1, 1 << 31, 1 << 70, 0.5, "", "1", text(rng), [], {}, [0]))
    return None


def logged(rng: random.Random) -> None:
    """Unfold rows of the change log, by the right layout or another one."""
    width = rng.randrange(1, 5)
    attnums = tuple(sorted(rng.sample(range(1, 9), width)))
    rows = [[rng.choice((None, text(rng), text(rng))) for _ in range(width)] for _ in range(rng.randrange(1, 5))]
    ops = [rng.choice("IUDTFM") for _ in rows]
    images = [_record(row) for row in rows]
    if broken := rng.random() < 0.3:
        images[0] = changed(rng, images[0].encode()).decode(errors="replace")
    other = rng.random() < 0.2
    layout = Binding(-1, 7, attnums[1:] if other else attnums, attnums[-1], rng.choice((None, 12)))
    count = np.arange(len(rows), dtype=np.int64)
    same = np.full(len(rows), 7, np.int64)
    texts = [pa.array(column, pa.string()) for column in (ops, images, images)]
    log = logged_rows.LogRows(count, same, count, same + 1, same, same, same, same, *texts)
    found: dict[int, dict[str, Any]] = {}
    for batch in logged_rows.events(log, {7: [layout]}, batch_id=1, generation=1):
        batch.validate(full=True)
        found |= {event["ordinal"]: event for event in batch.to_pylist() if event["kind"] == "row"}
    assert found.keys() == {n for n, op in enumerate(ops) if op in "IUD"}
    if layout.schema_id is not None and not broken and not other:
        for n, event in found.items():
            cells = dict(zip(attnums, rows[n], strict=True))
            assert event["new"] == event["old"] == [cells.get(attnum) for attnum in range(1, attnums[-1] + 1)]


TARGETS: dict[str, Callable[[random.Random], None]] = {
    target.__name__: target for target in (stream, message, ddl, copied, record, logged, line, configuration, moment)
}


def try_once(name: str, choices: random.Random) -> bool:
    """Run a parser on one input. Gives whether it accepted it; any error but the toolkit's own is a failure."""
    try:
        TARGETS[name](choices)
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
    names = [given.only] if given.only else list(TARGETS)
    end, accepted = time.monotonic() + given.seconds, dict.fromkeys(names, 0)
    corpora = {name: Corpus(f"{given.seed}:{name}") for name in names}
    print(f"seed {given.seed}", flush=True)
    while time.monotonic() < end:
        # The same time for each parser, not the same number of inputs: some take a hundred times as long.
        for name, corpus in corpora.items():
            until = time.monotonic() + _TURN_SECONDS
            while time.monotonic() < until:
                choices = corpus.next()
                try:
                    with corpus.watched(choices):
                        accepted[name] += try_once(name, choices)
                except BaseException:
                    print(f"failed: try_once({name!r}, Choices(bytes.fromhex({choices.used.hex()!r})))", flush=True)
                    raise
    for name, corpus in corpora.items():
        summary = f"{corpus.tried} inputs, {accepted[name]} accepted, the others refused by name"
        print(f"{name}: {summary}; {len(corpus.kept)} kept for {len(corpus.seen)} steps between lines")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
