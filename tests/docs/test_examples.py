"""Every command, configuration and statement that a document shows is one that works."""

from __future__ import annotations

import ast
import configparser
import importlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import jinja2
import psycopg
import pytest
import yaml
from packaging.requirements import Requirement

from tests.docs.documents import LANGUAGES, Block, blocks, command_lines, documents, name, prose
from tests.support_airflow import plant_airflow
from tests.support_postgres import fresh_database
from toolkit.api import Toolkit
from toolkit.cli import main
from toolkit.demo.server import EmbeddedServer
from toolkit.ops import metrics
from toolkit.values import config
from toolkit.values.resources import ROOT

unit = pytest.mark.unit
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _subcommand(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """Follow words such as `cdc ddl list ...` to the command, and give the words that are left."""
    command: click.Command = main
    context = click.Context(main, info_name="cdc")
    rest = words[1:]
    while isinstance(command, click.Group) and rest:
        found = command.get_command(context, rest[0])
        assert found is not None, f"{' '.join(words)}: no command {rest[0]!r}"
        command, context, rest = found, click.Context(found, parent=context), rest[1:]
    return command, context, rest


def _parse(words: list[str], folder: Path) -> None:
    """Parse a command line as `cdc`, `make` or `dbt` would."""
    while re.match("CDC_[A-Z]+__[A-Z_]+=", words[0]):  # for this command alone
        words = words[1:]
    program = Path(words[0]).name
    if program == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word} <= set(targets), words
    elif program == "dbt":
        from dbt.cli.main import cli

        (folder / "analytics").mkdir(exist_ok=True)
        (folder / "dbt_project").mkdir(exist_ok=True)
        command = cli.commands[words[1]]
        command.make_context(words[1], words[2:], parent=click.Context(cli))
    elif words[:2] == ["pip", "install"]:
        asked = [Requirement(Path(word).name) for word in words[2:]]
        assert all(one.name == _PROJECT["name"] for one in asked), words
        assert all(one.extras <= _PROJECT["optional-dependencies"].keys() for one in asked), words
    elif words[0] in ("mkdir", "cd", "."):
        assert len(words) == 2, words
    elif program in ("python", "python3"):
        assert words[1] == "-m", words
        assert importlib.util.find_spec(words[2]), words
    else:
        assert program == "cdc", f"{' '.join(words)}: a document shows a command that no test knows"
        command, context, rest = _subcommand(words)
        assert not isinstance(command, click.Group), words
        for word in rest:
            if word.endswith(".sql"):  # click opens it
                (folder / word).parent.mkdir(parents=True, exist_ok=True)
                (folder / word).touch()
        command.make_context(words[-1], rest, parent=context.parent)


@unit
def test_every_fenced_block_has_a_language_that_is_tested() -> None:
    unknown = [str(block) for block in blocks() if block.language not in LANGUAGES]
    assert not unknown
    fences = sum(
        len(re.findall(r"^\s*(?:```|~~~)", page.read_text(encoding="utf-8"), re.MULTILINE)) for page in documents()
    )
    assert fences == 2 * len(blocks()), "a fence is indented, unclosed or made of ~~~"


@unit
@pytest.mark.parametrize("block", blocks("text"), ids=str)
def test_output_hides_no_command(block: Block) -> None:
    assert not re.search(r"^\s*(\$|make|dbt) ", block.text, re.MULTILINE)
    if block.page != "docs/reference/commands.md":
        assert not re.search(r"^cdc (?!demo:)", block.text, re.MULTILINE)


@unit
@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_parse(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = command_lines(block)
    assert lines
    for words in lines:
        _parse(words, tmp_path)


@unit
@pytest.mark.parametrize("block", blocks("cron", "yaml"), ids=str)
def test_scheduled_commands_parse(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if block.language == "yaml":
        assert yaml.safe_load(block.text)
        for arguments in re.findall(r"args: (\[.*\])", block.text):
            _parse(["cdc", *json.loads(arguments)], tmp_path)
        assert set(re.findall(r"\bcdc_\w+", block.text)) <= {gauge.name for gauge in metrics.GAUGES}
    for line in re.findall(r"(?:&& |run: )(\S*cdc (?!-)[a-z]+.*?)(?= >>|$)", block.text, re.MULTILINE):
        _parse(shlex.split(line), tmp_path)
    assert block.language == "yaml" or "cdc " in block.text


@unit
@pytest.mark.parametrize("block", blocks("dockerfile"), ids=str)
def test_commands_of_an_image_parse(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^RUN (cdc .*)$", block.text, re.MULTILINE)
    assert lines and 'ENTRYPOINT ["cdc"]' in block.text
    for line in lines:
        _parse(shlex.split(line), tmp_path)


@unit
@pytest.mark.parametrize("block", blocks("ini"), ids=str)
def test_units_of_systemd_parse(block: Block, tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string(block.text)
    assert {"Service", "Timer"} & set(unit.sections())
    if "Service" in unit and "page-us" not in unit["Service"]["ExecStart"]:  # a program of the user's
        _parse(shlex.split(unit["Service"]["ExecStart"]), tmp_path)


@unit
@pytest.mark.parametrize("block", blocks("cron"), ids=str)
def test_a_scheduled_failure_is_mailed(block: Block, tmp_path: Path) -> None:
    """The lines wrote a red run, and why, into files that no one reads. Cron mails what a line prints."""
    program = tmp_path / ".venv" / "bin" / "cdc"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m toolkit.cli "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    (tmp_path / "cdc.toml").write_text('[source]\nconninfo = "host=127.0.0.1 port=1"\n', encoding="utf-8")
    lines = re.findall(r"(?<=cd /srv/shop-lake && ).*cdc run.*", block.text)
    assert lines
    for line in lines:
        done = subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "127.0.0.1" in done.stderr


@unit
@pytest.mark.parametrize("page", documents(), ids=name)
def test_commands_in_the_text_exist(page: Path) -> None:
    for span in re.findall(r"`(cdc [^`]+)`", prose(page)):
        words = [word.replace("\\", "") for word in span.split()]
        if not re.fullmatch(r"[a-z]+", words[1]):
            continue  # `cdc.toml` and the like
        command, context, rest = _subcommand(words)
        known = {option for parameter in command.get_params(context) for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known, span


@unit
@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_configurations_load(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "cdc.toml"
    file.write_text(block.text, encoding="utf-8")
    loaded = config.load(str(file))
    assert loaded.model_fields_set - {"root"}, "the block sets nothing"


@unit
@pytest.mark.parametrize("page", documents(), ids=name)
def test_keys_in_the_text_exist(page: Path) -> None:
    sections = {key: field.annotation for key, field in config.Config.model_fields.items()}
    for section, key in re.findall(r"`(source|lake|drain|ddl|snapshot|check|dbt|log|notify)\.([a-z_]+)`", prose(page)):
        assert key in sections[section].model_fields, f"{section}.{key}"  # type: ignore[union-attr]


@unit
@pytest.mark.parametrize("block", blocks("jinja"), ids=str)
def test_models_are_jinja(block: Block) -> None:
    jinja2.Environment(autoescape=True).parse(block.text)


@unit
@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_imports_what_exists(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_airflow(monkeypatch)
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names), block.text


@unit
def test_every_file_that_contributing_names_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:toolkit|sql|tests|docs|dbt_project|notebooks)/[^`*]*)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


@unit
def test_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
    for page in ROOT.glob("*.md"):
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (ROOT / link).exists(), f"{page.name}: {link}"


@pytest.mark.postgres
@pytest.mark.parametrize("page", sorted({block.page for block in blocks("sql")}))
def test_statements_run(page: str, pg16: EmbeddedServer) -> None:
    with fresh_database(pg16) as conninfo, psycopg.connect(conninfo, autocommit=True) as conn:
        roles = {row[0] for row in conn.execute("select rolname from pg_roles").fetchall()}
        try:
            for block in blocks("sql"):
                if block.page == page:
                    for statement in filter(str.strip, block.text.split(";")):
                        conn.execute(statement)
        finally:
            conn.execute("alter system reset all")
            for (role,) in conn.execute("select rolname from pg_roles").fetchall():
                if role not in roles:
                    conn.execute(psycopg.sql.SQL("drop role {}").format(psycopg.sql.Identifier(role)))


@unit
def test_each_call_of_the_python_interface_exists() -> None:
    guide = (ROOT / "docs" / "guides" / "notebooks.md").read_text(encoding="utf-8")
    called = set(re.findall(r"`cdc\.(\w+)\(", guide))
    public = {name for name in vars(Toolkit) if not name.startswith("_")}
    assert len(called) > 10 and called <= public


@unit
def test_each_question_of_contributing_names_a_definition() -> None:
    """A table of answers that is not compared with the tree named a file that had lost the rule."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+)\. [^|]+ \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1)) and len(rows) >= 25
    for number, files, symbols in rows:
        named = zip(re.findall("`(.+?)`", files), re.findall("`(.+?)`", symbols), strict=True)
        for file, symbol in named:
            assert _defines((ROOT / file).read_text(encoding="utf-8"), symbol), f"{number}: {symbol} in {file}"


def _defines(text: str, symbol: str) -> bool:
    """Say whether a Python module, a macro or a SQL script defines a name."""
    before = r"(?:def |class |\{%-? macro |create or replace function )?"
    return re.search(rf"^{before}{re.escape(symbol)}\b(?: =|\(|:)", text, re.MULTILINE) is not None


@unit
def test_a_definition_that_moved_is_found() -> None:
    assert _defines("def judge(\n", "judge") and _defines("class Config(BaseModel):", "Config")
    assert not _defines("from toolkit.rawlog.states import judge\nfound = judge(events)\n", "judge")
