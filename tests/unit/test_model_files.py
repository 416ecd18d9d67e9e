"""dbt reads the files of the models as they are meant, whatever the source calls its things."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import support_history as made
from toolkit.build import dbt_run, models
from toolkit.values.config import Config
from toolkit.values.lake_types import literal
from toolkit.values.lsn import Lsn
from toolkit.values.table import SchemaVersion, TableVersion

pytestmark = pytest.mark.unit

_LABELS = (
    "source (external)",
    " ref('x')",
    "env_var('HOME')",
    "{{ var('x') }}",
    "doc(a)\n",
    "5",
    "None",
    "[1]",
    "true",
)


def _version(table: dict[str, Any]) -> SchemaVersion:
    return SchemaVersion(1, 1, Lsn(1), Lsn(2), 0, TableVersion.from_json(table), json.dumps(table))


def test_a_file_of_the_users_under_the_name_of_a_model_is_kept_aside(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """Each sync deleted it, or wrote the table's model over it."""
    config = Config(root=tmp_path)
    folder = config.dbt_project.folder
    table = _version(made.snapshot("r", [made.column(1, "id", "bigint")]))
    models.write(config.lake_access, [table], dbt=config.dbt_project)
    texts = {"current/current__mine.sql": "select 'mine'", "current/current__public__r.sql": "select 'mine too'"}
    for path, text in texts.items():
        (folder / "models" / path).write_text(text, encoding="utf-8")
    synced = models.write(config.lake_access, [table], dbt=config.dbt_project)
    assert synced.removed == ("models/current/current__mine.sql",)
    assert "cdc_current(relid=" in (folder / "models/current/current__public__r.sql").read_text(encoding="utf-8")
    assert {p: (folder / "replaced/models" / p).read_text(encoding="utf-8") for p in texts} == texts
    assert len(said.records) == 2
    models.write(config.lake_access, [], dbt=config.dbt_project)
    assert not (folder / "replaced/models/current/current__public__r.yml").exists(), "it was generated"


def test_files_of_unchanged_tables_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 2,000 tables, each run spent 5 s on files that were right."""
    config = Config(root=tmp_path)
    file = config.dbt_project.folder / "models/current/current__public__r.yml"
    texts: list[str] = []
    dump = models._dump

    def note(data: dict[str, Any]) -> str:
        texts.append(dump(data))
        return texts[-1]

    monkeypatch.setattr(models, "_dump", note)

    def write(type_: str, dropped: bool = False) -> tuple[int, int]:
        """Write the models, and return how many files were made and written, without those of the profile."""
        texts.clear()
        table = made.snapshot("r", [made.column(1, "id", type_)], dropped=dropped)
        written = models.write(config.lake_access, [_version(table)], dbt=config.dbt_project).written
        return len(texts) - 1, len(set(written) - {"profiles.yml"})

    assert write("bigint") == (2, 4)
    right, now = file.read_text(encoding="utf-8"), file.stat()
    assert write("bigint") == (0, 0)
    file.write_text(right.replace("bigint", "biginT"), encoding="utf-8")
    os.utime(file, ns=(now.st_atime_ns, now.st_mtime_ns))  # what a tool that keeps times does
    assert write("bigint") == (2, 1) and file.read_text(encoding="utf-8") == right
    file.unlink()
    assert write("bigint") == (2, 1)
    file.with_name("current__other.yml").write_text("version: 2", encoding="utf-8")
    assert write("bigint") == (2, 0) and not file.with_name("current__other.yml").exists()
    assert write("integer") == (2, 2)
    monkeypatch.setattr(models, "code_identity", lambda: "another version")
    assert write("integer") == (2, 0)
    assert write("integer", dropped=True) == (1, 2) and not file.exists()
    assert write("integer", dropped=True) == (0, 0)
    (config.lake_access.work_dir / "dbt/models").write_bytes(b"\xff")  # damaged
    assert write("integer", dropped=True) == (1, 0)


def test_labels_that_look_like_calls_of_dbt_stop_no_build(tmp_path: Path) -> None:
    """dbt took the label `source (external)` for a call of its own, and could not read the project."""
    from dbt.cli.main import dbtRunner
    from dbt.clients.jinja import add_rendered_test_kwargs

    labels = [{"oid": n, "label": label} for n, label in enumerate(_LABELS, 1)]
    columns = [made.column(1, "id", "bigint"), made.column(2, "kind", "kinds", type_kind="e", enum_labels=labels)]
    config = Config(root=tmp_path)
    folder = config.dbt_project.folder
    version = _version(made.snapshot("r", columns, comment="source (external)"))
    models.write(config.lake_access, [version], dbt=config.dbt_project)
    with contextlib.redirect_stdout(io.StringIO()):
        where = ("--project-dir", str(folder), "--profiles-dir", str(folder), "--quiet", "--log-level-file", "none")
        outcome = dbtRunner().invoke(["parse", *where])
    assert outcome.success, outcome.exception
    (rule,) = (n for n in outcome.result.nodes.values() if n.name.startswith("accepted_values_current__public__r"))
    context: dict[str, Any] = {"ref": str, "get_where_subquery": str}
    add_rendered_test_kwargs(context, rule)
    assert context["_dbt_generic_test_kwargs"]["values"] == [literal(label)[1:-1] for label in _LABELS]


def test_variables_of_dbt_for_other_projects_change_no_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With DBT_TARGET=prod, which users of dbt often export, no build could run; dbt found no such target."""
    config = Config(root=tmp_path)
    folder = config.dbt_project.folder
    models.write(config.lake_access, [], dbt=config.dbt_project)
    for variable in ("DBT_TARGET", "DBT_ENGINE_TARGET", "DBT_PROFILE", "DBT_TARGET_PATH"):
        monkeypatch.setenv(variable, "prod")
    where = ["--project-dir", str(folder), "--profiles-dir", str(folder), "--quiet", "--log-level-file", "none"]
    exception, _ = dbt_run._dbt(config.lake_access, ["list", *where])
    assert exception is None and (folder / "target").is_dir()
    assert os.environ["DBT_TARGET"] == "prod"
