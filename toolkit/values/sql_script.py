"""Split a script of SQL into its statements, as psql splits it."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<comment>--[^\n]*)
  | (?P<open>/\*)
  | (?P<escaped>[eE]'(?:[^'\\]|''|\\.)*'?)
  | (?P<string>'(?:[^']|'')*'?)
  | (?P<quoted>"(?:[^"]|"")*"?)
  | (?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*)?\$)
  | (?P<word>[A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*)
  | (?P<end>;)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


_LINE = re.compile(r"(\\\S*)[^\n]*")
#: Commands that would end the transaction, or move the session to another place in it.
_CONTROL = frozenset({"begin", "start", "commit", "end", "abort", "rollback", "savepoint", "release"})
_ROWS = frozenset({"insert", "update", "delete", "merge"})
_DDL = frozenset({"comment", "grant", "revoke", "truncate", "reindex", "refresh", "lock"})
#: Objects that CREATE, ALTER and DROP may name. The list omits what reaches beyond the database, loads code, or
#: connects.
_OBJECTS = re.compile(
    "aggregate|cast|collation|conversion|default|domain|function|index|operator|policy|procedure|publication|routine"
    "|rule|schema|sequence|statistics|table|text|trigger|type|view"
)
_MODIFIERS = re.compile(
    "or|replace|temp|temporary|local|global|unlogged|unique|constraint|recursive|materialized|session"
)
#: Settings that SET may change.
_SETTINGS = re.compile(
    "check_function_bodies|client_encoding|client_min_messages|default_table_access_method|default_tablespace"
    "|idle_in_transaction_session_timeout|lock_timeout|search_path|standard_conforming_strings|statement_timeout"
    "|transaction_timeout|xmloption"
)


class Kind(enum.Enum):
    """The kind of a statement, by its first keywords."""

    DDL = enum.auto()
    ROWS = enum.auto()  # INSERT, UPDATE, DELETE, MERGE
    CONTROL = enum.auto()  # commands of the transaction
    OTHER = enum.auto()  # anything else, such as COPY, DO, SELECT and ALTER SYSTEM


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement without its semicolon. `words` are its first keywords in lower case, without comments."""

    line: int  # from 1
    text: str
    words: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """Classify the statement. An unknown one is OTHER."""
        first, rest = self.words[0], self.words[1:]
        if first in _CONTROL or self.words[:2] == ("prepare", "transaction"):
            return Kind.CONTROL
        if first in _ROWS:
            return Kind.ROWS
        named = next((word for word in rest if not _MODIFIERS.fullmatch(word)), "")
        if first in ("create", "alter", "drop"):
            known = _OBJECTS.fullmatch(named) is not None or rest[:2] == ("foreign", "table")
        elif first == "set":
            known = _SETTINGS.fullmatch(named) is not None
        else:
            known = first in _DDL
        return Kind.DDL if known else Kind.OTHER


def statements(script: str) -> Iterator[Statement]:
    """Return every statement of a script that is more than comments and blanks.

    Quotes, dollar quotes, nested comments and the bodies of SQL functions (BEGIN ATOMIC) may contain semicolons. A
    command of psql, which begins with a backslash, ends with its line.
    """
    at = start = depth = parentheses = 0
    words: list[str] = []
    while at < len(script):
        match = _TOKEN.match(script, at)
        assert match is not None
        kind, at = match.lastgroup, match.end()
        if kind == "open":
            at = _comment_end(script, at)
        elif kind == "dollar":
            close = script.find(match[0], at)
            at = len(script) if close < 0 else close + len(match[0])
        elif kind == "word":
            word = match[0].lower()
            # As in psql, BEGIN opens a body only inside CREATE FUNCTION or PROCEDURE.
            if depth == 0 and word == "begin" and words[:1] == ["create"] and {"function", "procedure"} & set(words):
                depth = 1
            elif depth and word in ("begin", "case"):
                depth += 1
            elif depth and word == "end":
                depth -= 1
            if len(words) < 5:
                words.append(word)
        elif match[0] == "\\" and not words:
            line = _LINE.match(script, match.start())
            assert line is not None
            at = line.end()
            yield _statement(script, match.start(), at, [line[1].lower()])
            start, parentheses = at, 0
        elif kind == "other" and match[0] in "()":
            parentheses += 1 if match[0] == "(" else -1
        elif kind == "end" and depth == 0 and parentheses <= 0:
            if words:
                yield _statement(script, start, match.start(), words)
            start, parentheses, words = at, 0, []
    if words:
        yield _statement(script, start, len(script), words)


def _statement(script: str, start: int, end: int, words: list[str]) -> Statement:
    first = start
    while True:  # find the line of the first word, not of a comment before it
        match = re.compile(r"\s+|--[^\n]*").match(script, first)
        if match is not None:
            first = match.end()
        elif script.startswith("/*", first):
            first = _comment_end(script, first + 2)
        else:
            return Statement(script.count("\n", 0, first) + 1, script[first:end].strip(), tuple(words))


def _comment_end(script: str, at: int) -> int:
    """Find the position after a comment whose `/*` ends at `at`. Comments nest."""
    depth = 1
    for match in re.compile(r"/\*|\*/").finditer(script, at):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(script)
