"""The dbt project follows the toolkit's version, and keeps what is the user's."""

from __future__ import annotations

import errno
import json
import os
import re
from datetime import date
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.support_ledger import ledger_of
from toolkit.build import dbt_run, models, project, small_tables
from toolkit.lake import session
from toolkit.values.config import Config
from toolkit.values.errors import BuildFailed, ConfigError, LakeError
from toolkit.values.lsn import Lsn
from toolkit.values.resources import FOLDER
from toolkit.values.whole_file import write_whole

PLAN = Path("macros/plan/cdc_plan.sql")
SHIPPED = {
    path.relative_to(FOLDER / "dbt_project"): path.read_bytes()
    for top in ("macros", "models")
    for path in (FOLDER / "dbt_project" / top).rglob("*.*")
    if not path.name.startswith(("current__", "history__"))
}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(root=tmp_path)


def files(folder: Path) -> dict[Path, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in found}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_project_is_made_once_and_then_left_alone(config: Config, said: pytest.LogCaptureFixture) -> None:
    project.ensure(config.dbt_project)
    made = files(config.dbt_project.folder)
    assert made.items() >= SHIPPED.items() and made.keys() >= {Path("dbt_project.yml"), Path(".gitignore")}
    times = {path: path.stat().st_mtime_ns for path in config.dbt_project.folder.rglob("*")}
    write(config.dbt_project.folder / "models" / "current" / "current__public__t.sql", "select 1")
    project.ensure(config.dbt_project)
    assert all(path.stat().st_mtime_ns == at for path, at in times.items() if path.is_file())
    assert said.records == []


def test_a_project_of_the_first_version_is_upgraded(config: Config, said: pytest.LogCaptureFixture) -> None:
    """It has no record of its files, several macros in a file, and what the user has added."""
    folder = config.dbt_project.folder
    settings = (FOLDER / "dbt_project" / "dbt_project.yml").read_text(encoding="utf-8") + "\nvars: {mine: 1}\n"
    write(folder / "dbt_project.yml", settings)
    write(
        folder / "macros" / "plan.sql",
        "{% macro cdc_plan(relid) %}{% endmacro %}{%- macro cdc_sorted(x) -%}{% endmacro %}",
    )
    write(folder / "models" / "ops" / "tables.sql", "select 'of the first version'")
    mine = {
        write(folder / "macros" / "mine.sql", "{% macro euros(cents) %}{{ cents }} / 100{% endmacro %}"),
        write(folder / "models" / "marts" / "totals.sql", "select 1 as total"),
        folder / "dbt_project.yml",
    }
    before = {path: path.read_bytes() for path in mine}
    project.ensure(config.dbt_project)
    assert (
        files(folder).items() >= SHIPPED.items() | {p.relative_to(folder): text for p, text in before.items()}.items()
    )
    assert not (folder / "macros" / "plan.sql").exists()
    assert sorted(path.as_posix() for path in files(folder / "replaced")) == [
        "macros/plan.sql",
        "models/ops/tables.sql",
    ]
    (line,) = said.records
    assert (line.getMessage(), line.levelname) == ("dbt project upgraded", "WARNING")
    assert line.kept_in_replaced == ["macros/plan.sql", "models/ops/tables.sql"]  # type: ignore[attr-defined]
    said.clear()
    project.ensure(config.dbt_project)
    assert said.records == []


def test_an_older_file_is_replaced_and_a_changed_one_is_kept_aside(config: Config) -> None:
    project.ensure(config.dbt_project)
    folder = config.dbt_project.folder
    record = json.loads((folder / ".toolkit.json").read_text(encoding="utf-8"))
    for path, text in ((PLAN, "{# older #}"), (Path("macros/plan/cdc_gone.sql"), "{# gone #}")):
        write(folder / path, text)
        record[path.as_posix()] = project._digest(text.encode())
    write(folder / ".toolkit.json", json.dumps(record))
    write(folder / "models" / "sources.yml", "# changed by hand")
    project.ensure(config.dbt_project)
    found = files(folder)
    assert found.items() >= SHIPPED.items() and Path("macros/plan/cdc_gone.sql") not in found
    assert files(folder / "replaced") == {Path("models/sources.yml"): b"# changed by hand"}


def test_a_setting_that_runs_need_is_asked_for_by_name(config: Config) -> None:
    project.ensure(config.dbt_project)
    settings = config.dbt_project.folder / "dbt_project.yml"
    text = settings.read_text(encoding="utf-8")
    for needed, instead, name in (
        ("skip_nodes_if_on_run_start_fails: true", "", "flags.skip_nodes_if_on_run_start_fails"),
        ('on-run-start: ["{{ cdc_begin() }}"]', "", "'{{ cdc_begin() }}' in on-run-start"),
        ('model-paths: ["models"]', 'model-paths: ["marts"]', "'models' in model-paths"),
        ('macro-paths: ["macros"]', 'macro-paths: ["../shared"]', "'macros' in macro-paths"),
    ):
        assert needed in text
        settings.write_text(text.replace(needed, instead), encoding="utf-8")
        with pytest.raises(LakeError, match=r"dbt_project\.yml lacks") as refused:
            project.ensure(config.dbt_project)
        assert name in str(refused.value)
    settings.write_text(text.replace('model-paths: ["models"]', ""), encoding="utf-8")
    project.ensure(config.dbt_project)  # it is dbt's default


@pytest.mark.parametrize("variables", [{"as_of_lsn": "0/1"}, {"cdc": {"as_of_lsn": "0/1"}}])
def test_the_variable_of_an_earlier_lsn_is_refused_in_the_settings(
    config: Config, variables: dict[str, object]
) -> None:
    """It named tables with the newest rows after an earlier LSN, and left those of `current` as they were."""
    project.ensure(config.dbt_project)
    settings = config.dbt_project.folder / "dbt_project.yml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text + yaml.safe_dump({"vars": variables}), encoding="utf-8")
    with pytest.raises(LakeError, match=r"dbt_project\.yml: as_of_lsn in vars .* and use --as-of-lsn$"):
        project.ensure(config.dbt_project)
    settings.write_text(
        text + yaml.safe_dump({"vars": {"since": "0/1", "other": {"as_of_lsn": "0/1"}}}), encoding="utf-8"
    )
    project.ensure(config.dbt_project)


def test_a_project_that_is_refused_is_left_as_it_is(config: Config) -> None:
    """A dbt project of the user's, named by mistake, was filled with macros and models, and lost its own macros."""
    write(config.dbt_project.folder / "dbt_project.yml", "name: analytics\nprofile: warehouse\n")
    write(config.dbt_project.folder / "macros" / "names.sql", "{% macro generate_schema_name(a, b) %}{% endmacro %}")
    before = files(config.dbt_project.folder)
    with pytest.raises(LakeError, match=r"dbt_project\.yml lacks name, profile"):
        models.write(config.lake_access, [], dbt=config.dbt_project)
    assert files(config.dbt_project.folder) == before


@pytest.mark.parametrize(
    ("text", "found"),
    [("name: [cdc\n", "is not valid YAML: .* line 2"), ("- name: cdc\n", "holds no settings; copy it from")],
)
def test_settings_that_cannot_be_read_are_refused_in_one_line(config: Config, text: str, found: str) -> None:
    """Broken YAML of the user's was a traceback."""
    project.ensure(config.dbt_project)
    write(config.dbt_project.folder / "dbt_project.yml", text)
    with pytest.raises(LakeError, match=rf"dbt_project\.yml {found}") as refused:
        project.ensure(config.dbt_project)
    assert "\n" not in str(refused.value)


def test_what_is_the_users_is_found_wherever_dbt_reads(config: Config) -> None:
    project.ensure(config.dbt_project)
    folder = config.dbt_project.folder
    for name in ("profiles.yml", "target/manifest.json", "logs/dbt.log", "models/current/current__public__t.sql"):
        write(folder / name, "x")
    assert project.own_files(folder) == []
    own = {"packages.yml", "snapshots/s.sql", "seeds/s.csv", "models/m.sql", "dbt_project.yml", "tests/t.sql"}
    own |= {"models/current/mine.sql", "models/history/mine/history__m.sql"}  # `cdc models sync` writes none of these
    for name in own:
        write(folder / name, "x")
    assert {path.as_posix() for path in project.own_files(folder)} == own


def test_another_folder_is_not_written_to(config: Config) -> None:
    write(config.dbt_project.folder / "notes.txt", "mine")
    with pytest.raises(LakeError, match=r"is not empty and holds no dbt_project\.yml"):
        project.ensure(config.dbt_project)
    assert list(files(config.dbt_project.folder)) == [Path("notes.txt")]


@pytest.mark.parametrize("number", [2, 3, 30])
def test_a_project_that_was_written_in_part_is_completed(
    config: Config, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """After a full disk or a kill, each later `cdc init` took it for the folder of another program."""
    written: list[Path] = []

    def full(path: Path, content: bytes) -> None:
        written.append(path)
        if len(written) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_whole(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(project, "write_whole", full)
        with pytest.raises(LakeError, match=r"writing the dbt project .*: No space left on device; free space there"):
            project.ensure(config.dbt_project)
    project.ensure(config.dbt_project)
    whole = config.model_copy(update={"root": config.root / "whole"})
    project.ensure(whole.dbt_project)
    assert files(config.dbt_project.folder) == files(whole.dbt_project.folder)


def test_a_part_has_the_models_of_some_tables_and_nothing_of_the_users(config: Config) -> None:
    project.ensure(config.dbt_project)
    for name in ("t", "u", "public__x"):
        for layer in ("current", "history"):
            for kind in ("sql", "yml"):
                write(config.dbt_project.folder / "models" / layer / f"{layer}__{name}.{kind}", name)
    write(config.dbt_project.folder / "models" / "own.sql", "select 1")
    part = project.write_part(config.lake_access, {"t", "dropped"}, dbt=config.dbt_project)
    generated = {
        Path(f"models/{layer}/{layer}__t.{kind}") for layer in ("current", "history") for kind in ("sql", "yml")
    }
    assert files(part).keys() == SHIPPED.keys() | generated | {Path("dbt_project.yml")}

    write(part / "target" / "partial_parse.msgpack", "of dbt")
    write(part / "target" / "run_results.json", "{}")
    times = {path: (part / path).stat().st_mtime_ns for path in files(part)}
    assert project.write_part(config.lake_access, {"u"}, dbt=config.dbt_project) == part
    assert {path.name for path in files(part / "models" / "current") if path.suffix} == {
        "current__u.sql",
        "current__u.yml",
    }
    assert all((part / path).stat().st_mtime_ns == at for path, at in times.items() if (part / path).is_file())
    project.keep_results(config.lake_access, part, dbt=config.dbt_project)
    assert (config.dbt_project.folder / "target" / "run_results.json").read_text(encoding="utf-8") == "{}"


def test_results_are_kept_where_the_settings_say(config: Config) -> None:
    """With `target-path`, none came to `[lake] reports`, and those of a run in another folder not to the project."""
    config = config.model_copy(update={"lake": config.lake.model_copy(update={"reports": "shared"})})
    project.ensure(config.dbt_project)
    folder, shared = config.dbt_project.folder, config.root / "other"
    settings = folder / "dbt_project.yml"
    project.copy_shared(folder, shared)
    settings.write_text(settings.read_text(encoding="utf-8").replace('"target"', '"out"'), encoding="utf-8")
    for made in (folder / "out", shared / "target"):
        write(made / "run_results.json", made.name)
        project.keep_results(config.lake_access, made.parent, dbt=config.dbt_project)
        kept = (folder / "out" / "run_results.json", config.root / "shared" / "dbt" / "run_results.json")
        assert [path.read_text(encoding="utf-8") for path in kept] == [made.name] * 2


def test_a_project_of_another_source_is_refused(config: Config) -> None:
    """Models name tables by OID, and an OID of one database is another table in another one."""
    shop = config.model_copy(update={"lake": config.lake.model_copy(update={"prefix": "shop"})})
    models.write(shop.lake_access, [], dbt=shop.dbt_project)
    made = files(config.dbt_project.folder)
    for other in (config, config.model_copy(update={"lake": config.lake.model_copy(update={"prefix": "crm"})})):
        with pytest.raises(LakeError, match=r"its profiles\.yml is of the source with schema 'shop_staging'"):
            models.write(other.lake_access, [], dbt=other.dbt_project)
    assert files(config.dbt_project.folder) == made
    models.write(shop.lake_access, [], dbt=shop.dbt_project)
    (config.dbt_project.folder / "profiles.yml").unlink()
    models.write(config.lake_access, [], dbt=config.dbt_project)


@pytest.mark.parametrize("given", [("--vars", "{since: 2026-01-01}"), ("--vars=since: 2026-01-01",), ()])
def test_the_users_variables_reach_dbt_beside_the_lsn(
    config: Config, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    """dbt reads the last `--vars`, which was that of the LSN."""
    read: list[list[str]] = []

    def dbt(_: object, arguments: list[str]) -> tuple[None, list[object]]:
        read.append(arguments)
        return None, []

    monkeypatch.setattr(dbt_run, "_dbt", dbt)
    for as_of in (None, Lsn(0x10)):
        dbt_run._invoke(
            config.lake_access, ["run", *given, "--threads", "2"], lambda: None, as_of=as_of, dbt=config.dbt_project
        )
    users = {"since": date(2026, 1, 1)} if given else {}
    for arguments, added in zip(read, ({}, {"as_of_lsn": "0/10"}), strict=True):
        assert arguments[:3] == ["run", "--threads", "2"] and arguments.count("--vars") == 1
        assert yaml.safe_load(arguments[arguments.index("--vars") + 1]) == users | added


@pytest.mark.parametrize("given", ["{as_of_lsn: 0/1}", "[", "word", ""])
def test_variables_that_the_toolkit_sets_are_refused(config: Config, given: str) -> None:
    """`as_of_lsn` named tables with the newest rows after an earlier LSN."""
    with pytest.raises(ConfigError, match="--vars of dbt: "):
        dbt_run._invoke(config.lake_access, ["run", "--vars", given], lambda: None, dbt=config.dbt_project)


@pytest.mark.parametrize("status", ["error", "partial success", "success"])
def test_a_model_of_the_users_of_which_a_batch_failed_is_named(
    config: Config, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """dbt calls it a partial success, and the build said nothing."""
    failed = _failed_of_user(config, monkeypatch, status, "cdc", "models/mine.sql")
    assert failed == (() if status == "success" else ("mine: 1 of 2 batches",))


@pytest.mark.parametrize("path", ["models/staging/changes.sql", "models/current/current__public__a.sql"])
def test_a_model_of_a_package_is_the_users_whatever_its_path_is(
    config: Config, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """It counted as the toolkit's own where a file of the toolkit has the same path, and stopped the build."""
    assert _failed_of_user(config, monkeypatch, "error", "finance", path) == ("mine: 1 of 2 batches",)
    if path.startswith("models/current/"):  # a table of its own, which keeps no other from being built
        assert _failed_of_user(config, monkeypatch, "error", "cdc", path) == ()
        return
    with pytest.raises(BuildFailed, match="building mine: 1 of 2 batches"):
        _failed_of_user(config, monkeypatch, "error", "cdc", path)


def test_what_dbt_skips_because_a_model_of_the_users_failed_is_built(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `fail_fast`, tables stayed as they were after a build that said that only a model of the user's failed."""
    names = {"mine": "models/mine.sql", "changes": "models/staging/changes.sql", "tables": "models/ops/tables.sql"}
    nodes = {
        name: SimpleNamespace(
            resource_type="model", name=name, original_file_path=path, package_name="cdc", unique_id=f"model.cdc.{name}"
        )
        for name, path in names.items()
    }
    runs = [{"changes": "success", "mine": "error", "tables": "skipped"}, {"changes": "success", "tables": "success"}]
    read: list[str] = []

    def dbt(_: object, arguments: list[str]) -> tuple[None, list[object]]:
        read.append(arguments[arguments.index("--project-dir") + 1])
        write(Path(read[-1]) / "target" / "run_results.json", f"run {len(read)}")
        return None, [SimpleNamespace(status=s, node=nodes[n], message="why") for n, s in runs[len(read) - 1].items()]

    monkeypatch.setattr(dbt_run, "_dbt", dbt)
    project.ensure(config.dbt_project)
    config.lake_access.work_dir.mkdir(parents=True, exist_ok=True)
    results, failed = dbt_run._invoke(config.lake_access, ["run"], lambda: None, dbt=config.dbt_project)
    assert failed == ("mine: why",) and {r.node.name: r.status for r in results} == runs[1]
    assert read[0] == str(config.dbt_project.folder) and len(set(read)) == 2
    assert (config.dbt_project.folder / "target" / "run_results.json").read_text(encoding="utf-8") == "run 2"


def _failed_of_user(
    config: Config, monkeypatch: pytest.MonkeyPatch, status: str, package: str, path: str
) -> tuple[str, ...]:
    """Return which models of the user failed, after a run of dbt with one model."""
    node = SimpleNamespace(resource_type="model", name="mine", original_file_path=path, package_name=package)
    result = SimpleNamespace(status=status, node=node, message="1 of 2 batches")
    monkeypatch.setattr(dbt_run, "_dbt", lambda *_: (None, [result]))
    project.ensure(config.dbt_project)
    return dbt_run._invoke(config.lake_access, ["run"], lambda: None, dbt=config.dbt_project)[1]


def test_after_an_interruption_dbt_does_not_run_again(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """With models of the user's, Ctrl-C while dbt read the project was followed by a whole run without them."""
    from dbt.parser.manifest import ManifestLoader

    read: list[object] = []

    def interrupted(loader: object) -> None:
        read.append(loader)
        raise KeyboardInterrupt

    models.write(config.lake_access, [], dbt=config.dbt_project)
    write(config.dbt_project.folder / "models" / "mine.sql", "select 1 as id")
    config.lake_access.work_dir.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(ManifestLoader, "load", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dbt_run._invoke(config.lake_access, ["run"], lambda: None, dbt=config.dbt_project)
    assert len(read) == 1


def test_a_refusal_of_the_system_without_a_file_says_where_it_happened() -> None:
    """Without `/dev/shm`, dbt makes no lock, and the message was "[Errno 13] Permission denied"."""
    try:
        os.kill(2**22 + 1, 0)
    except ProcessLookupError as error:
        said = dbt_run._message(error, [])
    assert re.fullmatch(rf"building: \[Errno 3\] No such process at {__file__}:\d+; correct it .*", said)
    assert " at " not in dbt_run._message(FileNotFoundError(2, "No such file or directory", "/x"), [])


@pytest.mark.parametrize("made", [[], ["marts.public__t"], ["history.public__t"]])
def test_a_table_that_no_model_has_built_is_named(
    config: Config, monkeypatch: pytest.MonkeyPatch, made: list[str]
) -> None:
    """With `enabled: false` or another `schema` for its model, `history` stayed as it was after a successful build."""
    model = SimpleNamespace(plan=SimpleNamespace(layer="history"), found=SimpleNamespace(quiet=False))
    shown: dict[str, Any] = {"history.public__t": model}
    nodes = [SimpleNamespace(schema=name.split(".")[0], alias=name.split(".")[1]) for name in made]
    monkeypatch.setattr(small_tables, "build", lambda *_, **__: ([], False))
    monkeypatch.setattr(session, "session", lambda _: None)
    monkeypatch.setattr(dbt_run, "_invoke", lambda *_, **__: ([SimpleNamespace(node=node) for node in nodes], ()))
    access, ledger = config.lake_access, ledger_of(config)
    build = partial(dbt_run._build_models, access, ledger, ["public__t"], lambda: shown, dbt=config.dbt_project)
    if made == list(shown):
        assert build(None, (), None)[2] == ()
        return
    with pytest.raises(BuildFailed, match=r"building history\.public__t: dbt has run no model that makes it"):
        build(None, (), None)
    build(None, ["--exclude", "history__public__t"], None)  # it was asked for
