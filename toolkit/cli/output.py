"""Render results, for people as text or for scripts as JSON. Commands return values and never print."""

from __future__ import annotations

import codecs
import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import date, datetime
from typing import Any, Protocol

import click

from toolkit.values import progress
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn
from toolkit.values.names import in_one_line, visible


class Output(Protocol):
    """The ways in which a command can show a result."""

    def record(self, value: Any) -> None:
        """Show one result."""

    def table(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Show rows as they come; text has these columns of them."""

    def text(self, line: str) -> None:
        """Show a line of text; JSON output leaves it out."""

    def script(self, sql: str) -> None:
        """Show SQL to run; in JSON, as the field `sql`."""


def say(line: str, *, nl: bool = True, err: bool = False) -> None:
    """Write a line of the result, without the line of progress that shows the whole command.

    Raises:
        CdcError: the program at the other end of a pipe reads no more, or the file cannot be written.
    """
    progress.result()
    encoding = _encoding()
    try:
        click.echo(line.encode(encoding, "backslashreplace").decode(encoding), nl=nl, err=err)
    except BrokenPipeError:
        raise CdcError(
            "writing the result: the program that reads it has ended; run it again, and write to a file if you need"
            " only a part"
        ) from None
    except OSError as error:
        raise CdcError(f"writing the result: {error.strerror or error}; free space there, and run it again") from None


def _encoding() -> str:
    """Return the encoding of standard output. That of an older locale lacks most characters."""
    return sys.stdout.encoding or "utf-8"


def plain(value: Any) -> Any:
    """Convert dataclasses, LSNs and times to JSON values."""
    if isinstance(value, Lsn):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return value if isinstance(value, str | int | float | bool | None) else str(value)


class JsonOutput:
    """Write one JSON document to standard output: indented on a terminal, else on one line, as log files want it."""

    def _text(self, value: Any) -> str:
        escaped = codecs.lookup(_encoding()).name != "utf-8"
        return json.dumps(plain(value), indent=2 if sys.stdout.isatty() else None, ensure_ascii=escaped)

    def record(self, value: Any) -> None:
        """Write one result as an object."""
        say(self._text(value))

    def table(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Write the rows as a list of objects, with all of their fields."""
        between = "["
        for row in rows:
            say(between + self._text(row), nl=False)
            between = ", "
        say("[]" if between == "[" else "]")

    def text(self, line: str) -> None:
        """Write nothing."""
        del line

    def script(self, sql: str) -> None:
        """Write an object with the SQL."""
        self.record({"sql": sql})


class TextOutput:
    """Write aligned lines of text to standard output."""

    def record(self, value: Any) -> None:
        """Write one field a line, and a nested list as a table."""
        data = plain(value)
        nested = {k: v for k, v in data.items() if isinstance(v, list) and v and isinstance(v[0], dict)}
        for key, item in data.items():
            if key not in nested:
                say(f"{key}: {_cell(item)}")
        for key, rows in nested.items():
            say(f"{key}:")
            self.table(rows, list(rows[0]))

    def table(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Write the columns of the rows, aligned by the first thousand."""
        rest = iter(rows)
        first = list(itertools.islice(rest, 1000))
        lines = ([in_one_line(_cell(plain(row.get(c)))) for c in columns] for row in itertools.chain(first, rest))
        cells = [list(columns), *itertools.islice(lines, len(first))]
        widths = [min(60, max(len(line[i]) for line in cells)) for i in range(len(columns))]
        for line in itertools.chain(cells, lines):
            say("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())

    def text(self, line: str) -> None:
        """Write the line."""
        say(visible(line))

    def script(self, sql: str) -> None:
        """Write the SQL as it is."""
        say(sql)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{k}={_cell(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(v) for v in value) or "-"
    return visible(str(value))
