"""Names from the source and secrets of the configuration do not get out of the places where they belong."""

from __future__ import annotations

import json
import os
import stat
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from toolkit.cli.frame import Context, command
from toolkit.cli.output import TextOutput
from toolkit.values import config as configuration
from toolkit.values.errors import ConfigError

pytestmark = pytest.mark.unit

_NAMES = ("<img src=x onerror=alert(1)>", '"><script>alert(2)</script>', "</script><b>", "'); alert(3); ('", "<!--")


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def _elements(names: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    import altair as alt
    import pandas as pd

    data = pd.DataFrame({"n": range(len(names)), "table": names})
    chart = alt.Chart(data).mark_bar().encode(x="n:Q", y="table:N").properties(title=names[2])
    found = _Elements()
    bundle = chart._repr_mimebundle_()
    for shown in (bundle[0] if isinstance(bundle, tuple) else bundle).values():
        found.feed(shown)
    return found.found


def test_no_element_of_a_chart_arises_from_a_name() -> None:
    import altair as alt

    before = alt.renderers.active
    try:
        alt.renderers.enable("svg")  # as the notebooks export them
        assert _elements(_NAMES) == _elements(("a", "b", "c", "d", "e"))
    finally:
        alt.renderers.enable(before)
    assert _elements(_NAMES) != _elements(("a", "b", "c", "d", "e"))  # planted: as Altair shows charts by default


def test_a_name_does_not_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b]0;title\x07\x9b2J\u202eb\r"
    TextOutput().table([{"table": name}], ["table"])
    TextOutput().record({"table": name, "list": [{"table": name}]})
    TextOutput().text(name)
    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\x07\x9b\u202e\r")
    assert r"a\x1b]0;title\x07\x9b2J\u202eb\r" in shown


def test_a_value_of_several_lines_stays_in_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    """The second line of a value in `cdc rows` was read as another row."""
    TextOutput().table([{"id": 1, "note": "a\n2   b"}], ["id", "note"])
    assert capsys.readouterr().out.splitlines()[1:] == [r"1   a\n2   b"]


@pytest.mark.parametrize("charset", ["iso-8859-1", "utf-8"])
def test_a_result_can_be_written_where_the_locale_lacks_its_characters(charset: str) -> None:
    @click.command()
    @command
    def names(ctx: Context) -> None:
        ctx.output.table([{"table": "é€"}], ["table"])

    text, json_ = (CliRunner(charset=charset).invoke(names, ["--output", form]) for form in ("text", "json"))
    shown = {"iso-8859-1": "é\\u20ac", "utf-8": "é€"}[charset]
    assert (text.exit_code, text.stdout_bytes.decode(charset).splitlines()) == (0, ["table", shown])
    assert (json_.exit_code, json.loads(json_.stdout_bytes.decode(charset))) == (0, [{"table": "é€"}])


def test_a_command_writes_files_that_only_this_account_reads(tmp_path: Path) -> None:
    @click.command()
    @command
    def write(ctx: Context) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").write_text("")

    before = os.umask(0o022)
    try:
        assert CliRunner().invoke(write).exit_code == 0
        assert os.umask(0o022) == 0o022  # as it was
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes == {"folder": 0o700, "file": 0o600}


@pytest.mark.parametrize(
    "text",
    [
        "source = 'host=db password=pl4nted'",
        "[source]\nconninfo = ['password=pl4nted']",
        "spark = 'pl4nted'",
        "[source]\npassword = 'pl4nted'",
        "[lake]\nuri = ['jdbc:postgresql://cdc:pl4nted@h/x']",
    ],
)
def test_an_error_of_the_configuration_does_not_print_a_secret(tmp_path: Path, text: str) -> None:
    (tmp_path / "cdc.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        configuration.load(str(tmp_path / "cdc.toml"))
    assert "pl4nted" not in str(refused.value)


@pytest.mark.parametrize("name", ["CDC_SPARK", "CDC_SOURCE__TABLES", "CDC_LAKE__PROPERTIES"])
def test_a_variable_that_is_not_json_is_refused_by_name_without_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "cdc.toml").write_text("")
    monkeypatch.setenv("CDC_SOURCE__CONNINFO", "service=x")
    monkeypatch.setenv(name, "pl4nted.*")
    with pytest.raises(ConfigError, match=f"^variable {name}: not valid JSON, .*; write it as JSON") as refused:
        configuration.load(str(tmp_path / "cdc.toml"))
    assert "pl4nted" not in str(refused.value)
