"""Reports are copied to `[lake] reports`, and files that only the last copy had are removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.lake import report_copies
from toolkit.quality import expectations
from toolkit.quality.report import CheckReport
from toolkit.values import config as configuration
from toolkit.values.config import Config, LakeConfig
from toolkit.values.errors import ConfigError


def _config(folder: Path, prefix: str = "", reports: str = "shared") -> Config:
    return Config(root=folder, lake=LakeConfig(reports=reports, prefix=prefix))


def _files(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != report_copies.LIST)
    return {p.relative_to(folder).as_posix(): p.read_text() for p in files}


def test_each_check_replaces_the_copies_of_the_last_one(tmp_path: Path) -> None:
    config = _config(tmp_path)
    docs = expectations.directory(config.lake_access) / "data_docs"
    docs.mkdir(parents=True)
    for page in ("one.html", "two.html"):
        (docs / page).write_text(page)
        expectations.write(config.lake_access, CheckReport(None, ()))
        assert _files(tmp_path / "shared" / "quality") == _files(expectations.directory(config.lake_access))
        (docs / page).unlink()


def test_what_no_copy_has_written_stays(tmp_path: Path) -> None:
    """`reports = "."` beside a dbt project in the folder `dbt` would delete that project."""
    model, made = tmp_path / "dbt" / "models" / "mine.sql", tmp_path / "dbt" / "target"
    for file in (model, made / "manifest.json", made / "run_results.json"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    access = _config(tmp_path, reports=".").lake_access
    report_copies.copy(access, "dbt", made, ["manifest.json", "run_results.json"])
    report_copies.copy(access, "dbt", made, ["manifest.json"])
    assert _files(tmp_path / "dbt").keys() == {
        "models/mine.sql", "target/manifest.json", "target/run_results.json", "manifest.json"
    }  # fmt: skip


def test_sources_do_not_replace_each_other_s_copies(tmp_path: Path) -> None:
    for prefix in ("", "shop", "crm"):
        expectations.write(_config(tmp_path, prefix).lake_access, CheckReport(None, ()))
    copied = {name.removesuffix("parity.json") for name in _files(tmp_path / "shared") if name.endswith("parity.json")}
    assert copied == {"quality/", "sources/shop/quality/", "sources/crm/quality/"}


def test_without_the_key_nothing_is_copied(tmp_path: Path) -> None:
    expectations.write(_config(tmp_path, reports="").lake_access, CheckReport(None, ()))
    assert {path.name for path in tmp_path.iterdir()} == {"lake"}


def test_a_copy_that_fails_is_said_and_nothing_else(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    """What the check has proven is published by then, and its exit code says what it found."""
    (tmp_path / "shared").write_text("a file")
    config = _config(tmp_path)
    assert expectations.write(config.lake_access, CheckReport(None, ()))
    (record,) = said.records
    assert record.getMessage() == "reports not copied"
    assert record.__dict__["to"] == report_copies.place(config.lake_access, "quality")


@pytest.mark.parametrize("place", ["s3a://bucket/x", "s3://", "ftp://host/x"])
def test_a_place_that_is_none_is_refused_by_its_key(place: str, tmp_path: Path) -> None:
    file = tmp_path / "cdc.toml"
    file.write_text(f'[lake]\nreports = "{place}"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"lake\.reports"):
        configuration.load(str(file))
