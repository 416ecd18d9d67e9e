"""Every error says what to do next, and every command in a message is one that the command line takes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from toolkit.cli import main
from toolkit.values import errors
from toolkit.values.errors import CdcError

pytestmark = pytest.mark.unit

PACKAGE = Path(__file__).resolve().parents[2] / "toolkit"
TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}
CLASSES: dict[str, type[CdcError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, CdcError)
}
#: What an interpolated value stands for: a name, which is good as an LSN too.
_VALUE = "0/1"
#: `thing: found; remedy`, or what was expected instead, which says what to give.
_SHAPE = re.compile(r"[^\n]*(; \S|[:,] expected )[^\n]*[^.\s]")
#: A command in backticks, or as the whole of a remedy up to the next mark or word of a sentence.
_COMMAND = re.compile(
    r"`cdc ([^`]*)`|(?<![\w.`'/-])cdc ((?:[a-z]+)(?: (?!(?:as|whose|which|to|or|again|once|and|for|in)\b)[^\s;,:`]+)*)"
)


def _text(node: ast.expr, value: str = _VALUE) -> str:
    """Give the text of a string expression; interpolated values are `value`."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, value) for part in node.values)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Call):
        return _text(node.value, value)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "command":  # of `toolkit.values.names`
        return " ".join(("cdc", *(_text(word, value) for word in node.args if not isinstance(word, ast.Starred))))
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name) and node.value.id == "ADVICE":
        from toolkit.capture.same_history import ADVICE

        return ADVICE
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, value) + _text(node.right, value)
    return value


def _raised() -> Iterator[tuple[str, type[CdcError], ast.Call]]:
    """Find every construction of an error with its text."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                name = ast.unparse(node.func).rpartition(".")[2]
                if name in CLASSES:
                    yield f"{path}:{node.lineno}", CLASSES[name], node


RAISED = list(_raised())
#: Errors whose text is made elsewhere: by a function, or by the error that they wrap.
_MADE = {
    "_message(exception, results)",
    "_reason(config, error)",
    "f'{error}{_begun(config)}'",
    """'; '.join((f'table {name}: {why}' for name, why in left.items()))""",
}


def test_the_walk_finds_the_errors() -> None:
    assert len(RAISED) > 180
    assert {ast.unparse(call.args[0]) for _, _, call in RAISED} >= _MADE


def test_every_error_says_what_to_do_next() -> None:
    found = []
    for place, kind, call in RAISED:
        if kind is errors.SlotRefused or ast.unparse(call.args[0]) in _MADE:
            continue  # its remedy is an argument
        advice = kind.advice and f"; {kind.advice}"
        shown = _text(call.args[0]) + advice
        if not _SHAPE.fullmatch(shown):
            found.append(f"{place}: {shown}")
    assert found == []


def test_an_advice_is_given_once() -> None:
    once = str(errors.DecodeError("message 3 is malformed"))
    assert once.startswith("message 3 is malformed; ")
    assert str(errors.DecodeError(once)) == once


def _strings() -> Iterator[tuple[str, str]]:
    """Find every string of the package that is no docstring and no part of another string."""
    for path, tree in TREES.items():
        inner = {
            id(part)
            for node in ast.walk(tree)
            for part in (
                node.values if isinstance(node, ast.JoinedStr)
                else [node.value] if isinstance(node, ast.FormattedValue)
                else [node.left, node.right] if isinstance(node, ast.BinOp)
                else [node.value] if isinstance(node, ast.Expr)
                else []
            )
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp | ast.Call) and id(node) not in inner:
                text = _text(node)
                if "cdc " in text:
                    yield f"{path}:{node.lineno}", text


def _commands() -> Iterator[tuple[str, str]]:
    for place, text in _strings():
        for match in _COMMAND.finditer(text):
            words = match[1] or match[2]
            if match[1] is not None or words.split()[0] in main.commands:
                yield place, words


COMMANDS = sorted(set(_commands()))


def test_the_walk_finds_the_commands() -> None:
    words = {words for _, words in COMMANDS}
    assert {"init", "init --new-generation", f"repair {_VALUE}", f"drain --skip {_VALUE}", "ddl resume"} <= words


@pytest.mark.parametrize(("place", "words"), COMMANDS)
def test_a_command_in_a_message_runs_as_pasted(place: str, words: str) -> None:
    command: click.Command = main
    arguments = shlex.split(words)
    while isinstance(command, click.Group):
        name = arguments.pop(0)
        assert name in command.commands, f"{place}: `cdc {words}`"
        command = command.commands[name]
    with command.make_context(command.name, arguments):  # refuses what it does not take
        pass
