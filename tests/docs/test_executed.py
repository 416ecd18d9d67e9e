"""How each fenced block of a document is executed, and the execution of those that use a lake."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.docs.documents import Block, blocks, command_lines
from tests.support_ledger import ledger_of
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.history import unhandled_ddl
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn

#: Where a block is executed, by its language. `lake` is this file; README's own blocks are those of its quick start.
TESTS = {
    "toml": "test_examples.py::test_configurations_load",
    "sql": "test_examples.py::test_statements_run",
    "cron": "test_examples.py::test_a_scheduled_failure_is_mailed",
    "sh": "lake",
    "python": "lake",
    "jinja": "lake",
    "yaml": "lake",
}
#: Why a block is not executed. There are no other reasons.
REASONS = {
    "output": "It is what a command prints, or a picture.",
    "make": "The targets are how tests, site and demo are run themselves.",
    "sources": "tests/e2e/test_many_sources.py runs several sources, of which each has a file of its own.",
    "demo": "tests/e2e/test_demo.py runs `cdc demo`.",
    "service": "It is for a program such as systemd, GitHub, Airflow, Docker or Prometheus. Its commands are parsed.",
}
_OF_A_SERVICE = re.compile(r"^(on|jobs|lake|concurrency|groups|apiVersion):|^from airflow", re.MULTILINE)


def execution(block: Block) -> str:
    """Say where a block is executed, or for which reason it is not."""
    if block.language == "text":
        return "output"
    if block.language in ("ini", "dockerfile") or (
        block.language in ("yaml", "python") and _OF_A_SERVICE.search(block.text)
    ):
        return "service"
    if block.page == "README.md" and block.language in ("sh", "sql") and "make demo" not in block.text:
        return "test_quick_start.py"
    if block.language == "sh" and "--config" in block.text:
        return "sources"
    if block.language == "sh":
        programs = {tuple(words[:2]) if words[0] == "cdc" else (words[0],) for words in command_lines(block)}
        if programs <= {("make",), ("cdc", "demo")}:
            return "demo" if ("cdc", "demo") in programs else "make"
    return TESTS[block.language]


@pytest.mark.unit
def test_each_block_is_executed_or_has_a_reason() -> None:
    found = {str(block): execution(block) for block in blocks()}
    assert set(found.values()) == {*TESTS.values(), *REASONS, "test_quick_start.py"}
    assert [
        block for block in blocks("sh", "python", "jinja", "yaml") if execution(block) == "lake" and not _runs(block)
    ] == []


def _runs(block: Block) -> bool:
    """Say whether this file knows how to execute a block."""
    if block.language == "sh":
        return {_split(words)[1][0] for words in command_lines(block)} <= {"cdc", "dbt"}
    return block.language == "python" or _file(block) is not None


def _split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Separate the variables that a shell command sets for itself from the command."""
    count = next(number for number, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    return dict(word.split("=", 1) for word in words[:count]), list(words[count:])


def _file(block: Block) -> str | None:
    """Give the file that a block is shown as, by its first line."""
    found = re.match(r"(?:#|--) (\S+/\S+)\n", block.text)
    return found[1] if found else None


@dataclass
class Shop:
    """A lake with the tables that the documents use, and what stands for the values that they show."""

    folder: Path
    conninfo: str
    environment: dict[str, str]
    values: dict[str, str] = field(default_factory=dict)

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement)

    def run(self, *command: str) -> str:
        variables, words = _split(command)
        program = {
            "cdc": [sys.executable, "-m", "toolkit.cli"],
            "dbt": [str(Path(sys.executable).with_name("dbt"))],
            "python": [sys.executable],
        }[words[0]]
        done = subprocess.run(
            [*program, *words[1:]], cwd=self.folder, env=os.environ | self.environment | variables,
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    @property
    def config(self) -> Config:
        return configuration.load(str(self.folder / "cdc.toml"))

    def execute(self, block: Block) -> None:
        """Execute one block, with this lake's values in place of those that it shows."""
        text = block.text
        for shown, mine in self.values.items():
            text = text.replace(shown, mine)
        if block.language == "sh":
            for words in command_lines(Block(block.page, block.number, block.language, text)):
                self.run(*words)
        elif block.language == "python":
            self.run("python", "-c", text)
        else:
            file = self.folder / (_file(block) or "")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def shop(pg16: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop") / "lake"
    with fresh_database(pg16) as conninfo:
        services = folder.with_name("pg_service.conf")
        shop = Shop(folder, conninfo, {"PGSERVICEFILE": str(services), "CDC_SOURCE__CONNINFO": "service=shop"})
        shop.sql(
            "create table public.customer (id int primary key, name text)",
            "create table public.orders (id int primary key, customer int references public.customer, amount int)",
            "insert into public.customer values (1, 'ann'), (2, 'bob')",
            "insert into public.orders values (1, 1, 10), (2, 1, 20), (7, 2, 5), (109, 2, 5)",
        )
        replica = f"{conninfo_to_dict(conninfo)['dbname']}_replica"
        other = make_conninfo(conninfo, dbname=replica)
        lines = [
            f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in conninfo_to_dict(where).items())
            for name, where in (("shop", conninfo), ("shop_installer", conninfo), ("shop_replica", other))
        ]
        services.write_text("\n".join(lines), encoding="utf-8")
        folder.mkdir()
        shop.run("cdc", "new", ".")
        with (folder / "cdc.toml").open("a", encoding="utf-8") as file:
            file.write('\n[table."public.orders"]\ncapture = "both"\n')
        shop.run("cdc", "init")
        shop.run("cdc", "drain")
        then = datetime.now(UTC)
        first = _complete_to(shop)
        time.sleep(0.01)  # times of commits have microseconds, and a commit at the same time would not be after it
        shop.sql(
            "update public.orders set amount = 21 where id = 2",
            "alter table public.orders add column note text default 'none'",
            "select pg_logical_emit_message(true, 'cdc.beacon', 'forged')",
        )
        shop.run("cdc", "run")
        (message, *_) = unhandled_ddl.unhandled(ledger_of(shop.config))
        shop.values |= {
            "0/16B3748": str(first),
            "0/18C4E88": str(_complete_to(shop)),
            "2026-11-20 12:00+01": then.isoformat(sep=" "),
            "resolve 17": f"resolve {message.id}",
        }
        for name in ("0042", "next"):
            (folder / "migrations").mkdir(exist_ok=True)
            (folder / "migrations" / f"{name}.sql").write_text("alter table orders add column kind int;", "utf-8")
        with psycopg.connect(make_conninfo(conninfo, dbname="postgres"), autocommit=True) as conn:
            copy = psycopg.sql.SQL("create database {} template {}")
            source = psycopg.sql.Identifier(str(conninfo_to_dict(conninfo)["dbname"]))
            conn.execute(copy.format(psycopg.sql.Identifier(replica), source))
        yield shop
        with psycopg.connect(make_conninfo(conninfo, dbname="postgres"), autocommit=True) as conn:
            conn.execute(psycopg.sql.SQL("drop database {} with (force)").format(psycopg.sql.Identifier(replica)))


def _complete_to(shop: Shop) -> Lsn:
    last = ledger_of(shop.config).last()
    assert last is not None
    return last.complete_to


@pytest.mark.e2e
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.dbt
@pytest.mark.wide
def test_the_blocks_of_the_documents_run_on_a_lake(shop: Shop) -> None:
    """The files of a page come before its commands. An erasure and a new log come after all that reads the old one."""
    on_the_lake = [block for block in blocks() if execution(block) == "lake"]
    assert len(on_the_lake) > 20
    last = [block for word in ("cdc erase", "--new-generation") for block in on_the_lake if word in block.text]
    failed = []
    for page in dict.fromkeys(block.page for block in on_the_lake):
        of_page = [block for block in on_the_lake if block.page == page and block not in last]
        for block in sorted(of_page, key=lambda block: _file(block) is None):
            try:
                shop.execute(block)
            except AssertionError as error:
                failed.append(f"{block}: {error}")
    for block in last:
        shop.execute(block)
    assert failed == []
    assert shop.run("cdc", "rows", "public.orders").count("\n") > 4, "the last block left no rows"
