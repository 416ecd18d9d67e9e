"""Reword every message of the package, as a pytest plugin: `pytest -p tests.reworded`.

The words of each reason, remedy and error are written backwards when a module is imported. A rule that reads prose then
decides something else, and the tests that assert states see it.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

#: At least three words in a row: identifiers, commands, tags and most type names are shorter.
_PROSE = re.compile(r"(?:[A-Za-z'`]+[,;:]? ){2,}[A-Za-z'`]+")
_WORD = re.compile(r"[A-Za-z]{2,}")
#: Rooms that hold statements too. Only what they raise or find is a message.
_WITH_SQL = {"source", "lake", "build", "demo"}
_MESSAGES = {"Finding", "Diagnosis"}


class _Reword(ast.NodeTransformer):
    def __init__(self, everywhere: bool) -> None:
        self.message = everywhere

    def _inside(self, node: ast.AST, message: bool) -> ast.AST:
        before, self.message = self.message, message
        self.generic_visit(node)
        self.message = before
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)  # a docstring

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return self._inside(node, False)  # a reader, if any, keeps the old words

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return self._inside(node, True)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        return self._inside(node, True) if name in _MESSAGES else self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        node.values = [self.visit(value) for value in node.values]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if self.message and isinstance(node.value, str) and _PROSE.search(node.value):
            return ast.copy_location(ast.Constant(_backwards(node.value)), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
        if self.message and _PROSE.search("x".join(map(str, parts))):
            for part in node.values:
                if isinstance(part, ast.Constant):
                    part.value = _backwards(str(part.value))
        return node


def _backwards(text: str) -> str:
    return _WORD.sub(lambda word: word[0][::-1], text)


def reword(text: str, *, everywhere: bool = True) -> ast.Module:
    """Give a module with its messages reworded. `everywhere`: its prose outside errors and findings too."""
    tree = _Reword(everywhere).visit(ast.parse(text))
    assert isinstance(tree, ast.Module)
    return ast.fix_missing_locations(tree)


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        path = self.get_filename(fullname)
        everywhere = not _WITH_SQL & set(fullname.split(".")[1:2])
        return compile(reword(Path(path).read_text(encoding="utf-8"), everywhere=everywhere), path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "toolkit":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


if __name__ != "__main__" and "pytest" in sys.modules and "-p" in sys.argv and "tests.reworded" in sys.argv:
    assert not any(name.partition(".")[0] == "toolkit" for name in sys.modules), "loaded before it could be reworded"
    sys.meta_path.insert(0, _Finder())
    _raises = pytest.raises

    def _raises_of_kind(*arguments: Any, match: object = None, **more: Any) -> Any:
        """Accept an error of any words: its type is behaviour, and its words are not."""
        return _raises(*arguments, **more)

    pytest.raises = _raises_of_kind
