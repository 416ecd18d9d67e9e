"""Every error says what to do next, and every command in a message is one that the command line takes."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.support_remedies import pasted
from toolkit.cli import main
from toolkit.values import errors
from toolkit.values.errors import CdcError

pytestmark = pytest.mark.unit

PACKAGE = Path(__file__).resolve().parents[2] / "toolkit"
TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}


def _classes() -> dict[str, type[CdcError]]:
    """Find every class of error in the package: those whose base is one, wherever they are defined."""
    found: dict[str, type[CdcError]] = {"CdcError": CdcError}
    missing = True
    while missing:
        missing = False
        for path, tree in TREES.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and node.name not in found and _bases(node) & found.keys():
                    module = importlib.import_module("toolkit." + path.removesuffix(".py").replace("/", "."))
                    found[node.name], missing = getattr(module, node.name), True
    return found


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).rpartition(".")[2] for base in node.bases}


CLASSES = _classes()
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
    "_in_words(failed, untried=len(names) - len(done) - len(failed))",
    "_message(exception, results)",
    "_not_built(failed)",
    "_reason(source, error, server)",
    "str(damaged)",
    "str(error)",
    "f'{error}{_begun(config, lake)}'",
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


def test_the_remedy_of_an_error_is_all_of_what_to_do() -> None:
    """Of "run this; or that" it was "or that"."""
    found = []
    for place, kind, call in RAISED:
        remedy = f"{_text(call.args[0])}; {kind.advice}".removesuffix("; ").rpartition("; ")[2]
        if remedy.split()[:1] in (["or"], ["and"], ["then"], ["but"]):
            found.append(f"{place}: {remedy}")
    assert found == []


def test_every_class_of_error_is_raised_by_the_walk_over_errors() -> None:
    from tests.postgres.test_errors import CASES

    assert set(CASES) == CLASSES.keys() - {"CdcError"}


def _remedies() -> Iterator[tuple[str, str]]:
    """Find every remedy of an alert of `cdc status` and of a finding of `cdc doctor`, with its place."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            at = {"Alert": 2, "Finding": 3, "Diagnosis": 3}.get(ast.unparse(node.func), len(node.args))
            if at < len(node.args):
                yield f"{path}:{node.lineno}", _text(node.args[at])


def test_a_remedy_of_status_and_doctor_can_be_pasted() -> None:
    """Commands stand in backticks and statements after `run:`, without anything to fill in."""
    remedies = dict(_remedies())
    assert len(remedies) > 50
    for place, remedy in remedies.items():
        bare = re.sub(r"`[^`]*`", "", remedy)
        assert "..." not in remedy, f"{place}: {remedy}"
        assert not re.search(r"\bcdc (?!\.)[a-z]", bare), f"{place}: {remedy}"
        assert re.match(r"(select|alter|grant) ", bare) is None, f"{place}: {remedy}"
        for text in pasted(remedy):
            assert re.match(r"cdc |kill |select |alter |create |drop |grant |0/1", text), f"{place}: {remedy}"


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
            if words == _VALUE:
                continue  # the command that last failed, which `of_runs` names: tests/postgres/test_status.py
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
