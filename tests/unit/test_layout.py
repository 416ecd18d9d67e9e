"""Rules of the source that no linter checks: what may import what, where statements run, how modules are named."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "toolkit"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: The rooms of the package in the order of their imports: a room imports itself and rooms of earlier rows.
ORDER = (
    {"values"},
    {"rawlog"},
    {"decode", "source"},
    {"lake"},
    {"build"},
    {"capture", "history"},
    {"quality"},
    {"ops", "demo"},
    {"api"},
    {"cli", "toolkit"},
)
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
#: Reach PostgreSQL on purpose beside `source`: the server and the traffic of the demo.
OWN_SESSIONS = {"toolkit/demo/server.py", "toolkit/demo/workload.py", "toolkit/demo/story.py"}
#: Uses Spark on purpose beside `lake`: the demo's story tampers with a table as an analyst would.
OWN_SPARK = {"toolkit/demo/story.py"}
#: File names in two rooms, for two halves of one thing.
SAME_THING = {
    "opened.py": {"lake", "source"},  # what a command opens once and hands down
    "row_lines.py": {"lake", "source"},  # the line of a row, as each of the two sides of a comparison prints it
}
#: Calls that run SQL on PostgreSQL, or on SQLite in `lake`, which cannot import psycopg.
RUNS_SQL = {"execute", "executemany", "copy_expert", "exec_", "exec_params", "send_query"}
#: Calls and attributes of a Spark session that read, make or change a table.
RUNS_SPARK = {"sql", "table", "read", "createDataFrame", "writeTo", "mapInArrow"}
#: How a statement begins. ALTER TABLE is left out: messages give it as a remedy.
STATEMENT = re.compile(
    r"\s*(select\s[^`]*\sfrom\s|with\s+\w+\s+as\s*\(|insert\s+into\s|update\s+\S+\s+set\s|delete\s+from\s"
    r"|(create|drop)\s+(or\s+replace\s+)?(table|view|namespace|publication|index)\s)",
    re.IGNORECASE,
)
#: The only modules that know the kind of a lake's catalog: all others ask `toolkit.lake.lake_catalog.open_catalog`.
_CATALOGS = ("any_catalog", "catalog_entries", "hive_catalog", "lake_catalog", "postgres_catalog", "sqlite_catalog")
#: The modules of the store of files, whose settings are among the properties of the catalog.
_STORE = ("values.object_store", "lake.storage")
KNOW_THE_CATALOG = {
    "toolkit.values.catalog_uri",
    "toolkit.values.config",  # which keys are never printed
    "toolkit.values.lake_access",
    "toolkit.demo.lake_sections",  # writes a configuration
    *(f"toolkit.{name}" for name in _STORE),
    *(f"toolkit.lake.{name}" for name in _CATALOGS),
}
HEAVY = {"pyspark", "pyiceberg", "dbt", "great_expectations", "pandas", "papermill"}


def _room(module: str) -> str:
    """Room of a dotted module name in the package."""
    parts = module.split(".")
    return parts[0] if len(parts) == 1 or parts[1].startswith("__") else parts[1]


def _may_import(room: str, other: str) -> bool:
    return room == other or RANK[other] < RANK[room]


def _named_modules(tree: ast.AST) -> set[str]:
    """Every module of the toolkit that a string names, which may import it: `toolkit.decode.rows:decode_rows`."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    named = {text.partition(":")[0] for text in texts if re.fullmatch(r"toolkit(\.\w+)+(:\w+)?", text)}
    return {name for name in named if (ROOT / f"{name.replace('.', '/')}.py").exists()}


def _imports(tree: ast.AST) -> set[str]:
    """Every toolkit module and top-level package that a module imports, also inside functions."""
    found = _named_modules(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "toolkit":
            found |= {f"toolkit.{alias.name}" for alias in node.names if not alias.name.startswith("__")}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def _run_time_imports(text: str) -> set[str]:
    """Top-level packages that a module imports when it runs: not those under `if TYPE_CHECKING`, for annotations."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING":
            node.body = []
    return {name.split(".")[0] for name in _imports(tree)}


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _wrong_imports(module: str, text: str) -> list[str]:
    room = _room(module)
    names = {name for name in _imports(ast.parse(text)) if name.partition(".")[0] == "toolkit"}
    return sorted(name for name in names if not _may_import(room, _room(name)))


def _makes_a_config(text: str) -> bool:
    made = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return any("Config" in (getattr(called, "id", ""), getattr(called, "attr", "")) for called in made)


def test_only_its_own_module_makes_a_configuration() -> None:
    """Made elsewhere, it names the lake of the environment: the recording of classes wrote there."""
    assert _makes_a_config("Config(root=folder)") and _makes_a_config("config.Config()")
    assert not _makes_a_config("LakeConfig()")
    made = [_name(path) for path in MODULES if _makes_a_config(path.read_text(encoding="utf-8"))]
    assert made == ["toolkit.values.config"]


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_point_one_way(path: Path) -> None:
    assert _wrong_imports(_name(path), path.read_text(encoding="utf-8")) == []


def test_a_wrong_import_is_found() -> None:
    assert _wrong_imports("toolkit.decode.planner", "def f():\n    from toolkit.lake import session\n")
    assert _wrong_imports("toolkit.source.peek", "from toolkit.lake.ledger import Ledger")
    assert _wrong_imports("toolkit.lake.staging", "from toolkit.capture import slot_drain")
    assert _wrong_imports("toolkit.lake.staging", "def f():\n    import toolkit\n")
    assert _wrong_imports("toolkit.values.lsn", "import_module('toolkit.cli.frame')")
    assert not _wrong_imports("toolkit.capture.slot_drain", "from toolkit.lake.ledger import Ledger")


def _graph(texts: dict[str, str]) -> dict[str, set[str]]:
    """What each module imports, by dotted names: also inside functions, and for annotations only."""
    graph: dict[str, set[str]] = {}
    for module, text in texts.items():
        found = graph.setdefault(module, set())
        tree = ast.parse(text)
        found |= _named_modules(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (names & texts.keys()) or {node.module}
        found &= texts.keys() - {module}
    return graph


def _cycle(graph: dict[str, set[str]]) -> set[str]:
    """The modules that import each other, with those between two cycles: none of them can come first or last."""
    left = dict(graph)
    while True:
        free = {m for m in left if not left[m] & left.keys() or not any(m in left[other] for other in left)}
        if not free:
            return set(left)
        left = {m: found for m, found in left.items() if m not in free}


def test_no_module_imports_itself_through_others() -> None:
    assert _cycle(_graph({_name(path): path.read_text(encoding="utf-8") for path in MODULES})) == set()


def test_a_cycle_is_found() -> None:
    one, two = "def f():\n    from a import two\n", "if TYPE_CHECKING:\n    from a.three import Three\n"
    assert _cycle(_graph({"a.one": one, "a.two": two, "a.three": "import a.one"})) == {"a.one", "a.two", "a.three"}
    assert not _cycle(_graph({"a.one": one, "a.two": two, "a.three": "import json"}))


def _module_names(paths: Iterable[Path]) -> list[str]:
    """Modules whose only public function has the module's name, and file names that stand for two things."""
    found, places = [], dict[str, set[str]]()
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        public = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
        if public == [path.stem]:
            found.append(f"{path.name} is named like its one function")
        if not path.stem.startswith("__"):
            places.setdefault(path.name, set()).add(path.parent.name)
    found += [f"{name} is in {sorted(p)}" for name, p in places.items() if len(p) > 1 and SAME_THING.get(name) != p]
    return found


def test_a_file_name_says_one_thing() -> None:
    assert _module_names(MODULES) == []
    assert _twice((ROOT / "sql").rglob("*.sql")) == {}


def _twice(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Find file names that are in several folders, by name: the file alone says what it has."""
    places: dict[str, list[str]] = {}
    for path in paths:
        places.setdefault(path.name, []).append(path.parent.name)
    return {name: folders for name, folders in places.items() if len(folders) > 1}


def test_a_wrong_file_name_is_found(tmp_path: Path) -> None:
    for name, text in {"a/peek.py": "def peek(): ...", "a/list.py": "", "b/list.py": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert len(_module_names(sorted(tmp_path.rglob("*.py")))) == 2
    assert _twice([Path("a/tables.sql"), Path("b/tables.sql"), Path("b/slot.sql")]) == {"tables.sql": ["a", "b"]}


def test_few_modules_are_outside_the_rooms() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 8


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_only_source_talks_to_postgresql_and_only_lake_to_spark(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    layer, used = _room(_name(path)), {name.split(".")[0] for name in _imports(ast.parse(text))}
    if layer in {"values", "rawlog", "decode"}:
        assert not used & {"psycopg", *HEAVY}
    if layer == "lake":
        assert "psycopg" not in used
    if layer == "source":
        assert not used & HEAVY
    if path.relative_to(ROOT).as_posix() not in OWN_SESSIONS and layer != "source":
        assert "psycopg" not in _run_time_imports(text), "only toolkit/source uses the driver, with its settings pinned"
    if path.relative_to(ROOT).as_posix() not in OWN_SPARK and layer != "lake":
        assert "pyspark" not in _run_time_imports(text), "only toolkit/lake uses Spark"


def _knows_the_catalog(module: str, text: str) -> bool:
    """Say whether a module knows which kind of catalog a lake has: its file, its settings or its class."""
    known = re.search(
        r"\bcatalog_db\b|\blake\.(type|uri|properties)\b|iceberg_tables|(Sqlite|Any|Postgres)Catalog\b", text
    )
    return known is not None and module not in KNOW_THE_CATALOG


def test_only_the_catalogs_know_the_kind_of_a_catalog() -> None:
    assert [str(p) for p in MODULES if _knows_the_catalog(_name(p), p.read_text(encoding="utf-8"))] == []


def test_a_module_that_knows_the_kind_of_a_catalog_is_found() -> None:
    assert _knows_the_catalog("toolkit.lake.reads", "rows = open(config.lake_access.catalog_db)")
    assert _knows_the_catalog("toolkit.ops.status", "if config.lake.type == 'rest':")
    assert not _knows_the_catalog("toolkit.ops.status", "open_catalog(config).where")


def _texts(tree: ast.AST) -> list[str]:
    """Every string of a module that is not a docstring, with the fixed parts of an f-string as one."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(p.value) if isinstance(p, ast.Constant) else "x" for p in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | parts:
            found.append(node.value)
    return found


def _on_spark(node: ast.Attribute) -> bool:
    """Say whether an attribute is one of a Spark session: a name like `spark`, or the call that opens one."""
    owner = node.value
    name = owner.func if isinstance(owner, ast.Call) else owner
    return str(getattr(name, "attr", None) or getattr(name, "id", "")).lstrip("_") in {
        "spark",
        "own_session",
        "session",
    }


def _statements(path: str, text: str) -> list[str]:
    """Every place where a module runs, loads or holds a statement that belongs to `source` or to `lake`."""
    tree, room = ast.parse(text), _room(".".join(Path(path).with_suffix("").parts))
    given = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call) and n.args and room != "source"}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        if node.attr in RUNS_SQL and room not in {"source", "lake"} and path not in OWN_SESSIONS:
            found.append(f"line {node.lineno}: {node.attr}() belongs in toolkit/source")
        if node.attr == "copy" and id(node) in given and ast.unparse(node.value) not in {"shutil", "report_copies"}:
            found.append(f"line {node.lineno}: a COPY belongs in toolkit/source")
        if node.attr in RUNS_SPARK and _on_spark(node) and room != "lake" and path not in OWN_SPARK:
            found.append(f"line {node.lineno}: {node.attr} of Spark belongs in toolkit/lake")
    used = {(node.module, alias.name) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
            for alias in node.names}  # fmt: skip
    loads = {("toolkit.values", "resources"), ("toolkit.values.resources", "load")}
    if used & loads and room != "source" and path not in OWN_SESSIONS:
        found.append("loads a statement of sql/, which belongs in toolkit/source")
    if room not in {"source", "lake", "demo"}:
        found += [f"holds the statement {text.strip()[:60]!r}" for text in _texts(tree) if STATEMENT.match(text)]
    return found


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_sql_runs_in_source_and_spark_sql_in_lake(path: Path) -> None:
    assert _statements(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("toolkit/capture/drift.py", "conn.execute('set lock_timeout = 1')"),
        ("toolkit/quality/parity.py", "with conn.cursor() as c:\n    c.executemany(text, rows)"),
        (
            "toolkit/quality/parity.py",
            "from toolkit.values.resources import load\nload('parity/lines')",
        ),
        ("toolkit/capture/drift.py", "with cursor.copy(text) as rows: ..."),
        ("toolkit/capture/drift.py", "conn.pgconn.exec_(text)"),
        ("toolkit/history/effects.py", "_ALL = 'select relid from raw.events'"),
        ("toolkit/ops/status_report.py", "def f(name):\n    return f'drop table {name} purge'"),
        ("toolkit/source/peek.py", "spark.sql(text)"),
        ("toolkit/build/retired.py", "own_session(config).sql(text)"),
        ("toolkit/quality/cause.py", "self.spark.table(name)"),
        ("toolkit/history/versions.py", "session.own_session(config).createDataFrame(rows)"),
        ("toolkit/capture/copy.py", "spark.read.parquet(path)"),
    ],
)
def test_a_wrong_statement_is_found(path: str, text: str) -> None:
    assert _statements(path, text)


def test_statements_in_their_rooms_pass() -> None:
    assert not _statements("toolkit/source/peek.py", "conn.execute('select 1 from pg_class')")
    assert not _statements("toolkit/lake/proofs.py", "spark.sql('select 1 from raw.events')")
    assert not _statements("toolkit/cli/history.py", "ctx.output.table(rows, ['a'])")


@pytest.mark.parametrize("path", [*MODULES, *sorted((ROOT / "tests").rglob("*.py"))], ids=_name)
def test_no_module_is_over_500_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


def _made_bytes(text: str) -> list[str]:
    """List calls that make bytes as the server sends them."""
    return re.findall(r"\.(?:pack|pack_into|to_bytes)\(", text)


def test_decode_makes_no_messages() -> None:
    """Logged DDL was once packed into made-up messages of pgoutput, to be read by the decoder of the stream."""
    for path in MODULES:
        if _room(_name(path)) in {"decode", "rawlog", "capture"}:
            assert _made_bytes(path.read_text(encoding="utf-8")) == [], path
    assert _made_bytes("_HEAD.pack(1)") and _made_bytes("lsn.to_bytes(8)") and not _made_bytes("_HEAD.unpack(x)")


#: Shifts and numbers that are ordinals of the raw log, a commit LSN made from an LSN by hand, and comparisons.
ORDINALS = re.compile(
    r"1 << (?:39|4[0-2])\b|(?i:shiftleft)\(|2 ?\*\* ?(?:39|4[0-2])\b|\b(?:549755813888|1099511627775|1099511627776)\b"
    r"|commit_lsn=int\(\w+\) - 1"
    r"|ordinal(?:\(\w+\))?\s*[+-]\s*\w|\(at - 1\b|ordinal['\"]?:\s*-?\d"
    r"|<< 32\)?\s*\+|ordinal\)?\s*[<>]|(?<!-)[<>]=?\s*[\w.({]*\bordinal\b|key=lambda \w+: \(.*ordinal"
)


def _own_ordinals(text: str) -> list[str]:
    return ORDINALS.findall(text)


@pytest.mark.parametrize(
    "path",
    [
        p
        for d, e in (
            ("toolkit", "py"),
            ("sql", "sql"),
            ("dbt_project", "sql"),
            ("dbt_project", "yml"),
            ("notebooks", "ipynb"),
        )
        for p in sorted((ROOT / d).rglob(f"*.{e}"))
    ],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_only_rawlog_order_assigns_ordinals(path: Path) -> None:
    if path != PACKAGE / "rawlog" / "order.py":
        assert _own_ordinals(path.read_text(encoding="utf-8")) == []


def test_an_ordinal_elsewhere_is_found() -> None:
    assert _own_ordinals("ordinal=(1 << 40) - 1")
    assert _own_ordinals("where ordinal < 1099511627775") and _own_ordinals("shiftleft(1L, 41)")
    assert _own_ordinals("_LAST = 2**41 - 1")
    assert _own_ordinals("(piece << 32) + row")
    assert _own_ordinals("Event(commit_lsn=int(lsn) - 1)")
    assert _own_ordinals("(version.commit, version.ordinal) < (next.commit, next.ordinal - 1)")
    assert _own_ordinals("commit_lsn = {{ low.commit }} and ordinal > {{ low.ordinal }}")
    assert _own_ordinals("t.c = commit_lsn and t.o <= ordinal")
    assert _own_ordinals("set window = {'commit': target.lsn, 'ordinal': -1}")
    assert _own_ordinals("sorted(found, key=lambda e: (e.commit_lsn, e.ordinal))")
    assert _own_ordinals("self._ordinal(index) + number")
    assert _own_ordinals("for value in (at - 1, at, now)")
    assert not _own_ordinals("int(high, 16) << 32 | int(low, 16)")
    assert not _own_ordinals("ordinal: int\npa.field('ordinal', pa.int64())\norder by commit_lsn, ordinal, sub")


#: Rows of results and of the lake have these keys, and values have these attributes.
ASKED = {"kind", "origin", "scope", "state", "event", "status", "proof", "class", "level", "capture", "triggers"} | {
    "new_tables", "change_log_drain", "format", "effect", "last_check", "action",
}  # fmt: skip


def _members() -> dict[str, set[str]]:
    """Give the values of every enumeration of the package, by its name."""
    found = {}
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & {"StrEnum", "_Word"}:
                members = (
                    n.value.value for n in node.body if isinstance(n, ast.Assign) and type(n.value) is ast.Constant
                )
                found[node.name] = {str(member) for member in members}
    return found


ENUMERATIONS = _members()
WORDS = set().union(*ENUMERATIONS.values())


def _asked(node: ast.expr) -> str | None:
    """Give the name of what an expression reads: an attribute, a key, or a variable of that name."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else None
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _spelled_out(text: str) -> list[str]:
    """List comparisons and arguments that spell out a word of an enumeration instead of naming its member."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            texts = {leaf.value for side in sides for leaf in ast.walk(side) if isinstance(leaf, ast.Constant)}
            if ASKED & set(map(_asked, sides)) and texts & WORDS - set(map(_asked, sides)):
                found.append(ast.unparse(node))
        if isinstance(node, ast.Match) and _asked(node.subject) in ASKED:
            leaves = [leaf.value for case in node.cases for leaf in ast.walk(case.pattern) if hasattr(leaf, "value")]
            found += [ast.unparse(x) for x in leaves if isinstance(x, ast.Constant) and x.value in WORDS]
        if isinstance(node, ast.Dict) and len(node.keys) > 1:
            keys = {key.value if isinstance(key, ast.Constant) else None for key in node.keys}
            found += [f"keys {sorted(map(str, keys))}"] * any(keys <= words for words in ENUMERATIONS.values())
        if isinstance(node, ast.keyword) and node.arg in ASKED:
            leaves = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
            if any(isinstance(leaf, ast.Constant) and leaf.value in WORDS for leaf in leaves):
                found.append(f"{node.arg}={ast.unparse(node.value)}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_words_that_decide_are_members_of_an_enumeration(path: Path) -> None:
    assert _spelled_out(path.read_text(encoding="utf-8")) == []


def test_a_word_spelled_out_is_found() -> None:
    assert {"State", "CheckStatus", "RowClass", "CauseKind", "ProofKind", "EffectClass", "Unclassified"} | {
        "UnhandledKind", "ChangeKind", "Level", "Capture", "BuildAction",
    } <= ENUMERATIONS.keys()  # fmt: skip
    assert _spelled_out("if event.kind == 'gap': pass\nif s.state in ('ok', x): pass") == [
        "event.kind == 'gap'",
        "s.state in ('ok', x)",
    ]
    assert _spelled_out("row['status'] != 'identical'") and _spelled_out("row.get('status') != 'identical'")
    assert _spelled_out("replace(r, status='stale')") and _spelled_out("f(proof='full' if x else y)")
    assert _spelled_out("level == 'error'") and _spelled_out("table.capture != 'both'")
    assert _spelled_out("match s.state:\n    case 'ok' | 'other': pass") and _spelled_out("{'ok': 1, 'stale': 2}[x]")
    assert _spelled_out("event.kind == Kind.GAP; side.kind == 'other'; {'status': 'identical'}") == []


def test_help_loads_nothing_heavy() -> None:
    """`cdc --help` starts no JVM because nothing that could is even imported."""
    code = f"import sys, toolkit.cli; print(sorted(set({sorted(HEAVY)!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
