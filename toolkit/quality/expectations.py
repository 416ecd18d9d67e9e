"""Assert on the parity result with Great Expectations; write Data Docs, and reports as text, JSON and JUnit."""

from __future__ import annotations

import json
import logging
import re
import shutil
import warnings
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.lake import report_copies
from toolkit.quality import report_page
from toolkit.quality.published_state import PublishedRows, after, columns, published_rows
from toolkit.quality.report import CheckReport, as_text
from toolkit.values.config import CheckConfig
from toolkit.values.errors import CdcError, ConfigError
from toolkit.values.lake_access import LakeAccess
from toolkit.values.libraries import Library, load
from toolkit.values.names import in_one_line
from toolkit.values.outcome import CheckStatus, RowClass
from toolkit.values.whole_file import write_whole

if TYPE_CHECKING:
    import pandas as pd

    from toolkit.lake.ledger import Ledger

SUITE, ORPHANS, VIEWS, OWN_MODELS = "parity", "orphans", "views", "own models"
_COUNTS = ("rows", "identical", "modified", "added", "removed")


def directory(access: LakeAccess) -> Path:
    """Return the folder with the reports of the last check."""
    return access.work_dir / "target" / "quality"


def last_report(access: LakeAccess) -> dict[str, Any]:
    """Return the report of the last check.

    Raises:
        ConfigError: there was no check yet.
    """
    path = directory(access) / "parity.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"reading the last report: there is no {path}; run `cdc check`") from None
    return found


def write(access: LakeAccess, report: CheckReport) -> tuple[Path, ...]:
    """Write `parity.txt`, `parity.json`, `junit.xml` and `report.html`, which links to the Data Docs; return them."""
    target = directory(access)
    text, data, junit = target / "parity.txt", target / "parity.json", target / "junit.xml"
    files = (text, data, junit, target / "report.html")
    pages = sorted(page.relative_to(target).as_posix() for page in (target / "data_docs").glob("validations/**/*.html"))
    report = replace(report, reports=tuple(str(f) for f in files))
    write_whole(text, as_text(report))
    write_whole(data, json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n")
    write_whole(junit, _junit(report))
    write_whole(files[-1], report_page.render(report, pages))
    docs = (page.relative_to(target).as_posix() for page in (target / "data_docs").rglob("*") if page.is_file())
    report_copies.copy(access, "quality", target, [*sorted(docs), *(file.name for file in files)])
    return files


def validate(ledger: Ledger, report: CheckReport, *, check: CheckConfig) -> None:
    """Run the suite over the result, one row a table, and build the Data Docs.

    Raises:
        CdcError: Great Expectations and the report disagree on whether parity is proven.
    """
    success = run(report, directory(ledger.access) / "data_docs", published_rows(ledger, report), check)
    if success != report.green:
        found = f"Great Expectations says {success}, the comparison says {report.green}"
        raise CdcError(f"validating the parity result: {found}; nothing is published")


def run(
    report: CheckReport, docs: Path, published_rows: PublishedRows | None = None, limits: CheckConfig | None = None
) -> bool:
    """Run all suites, write their Data Docs to `docs`, and say whether the suites of parity and orphans succeed.

    The suites over `published_rows` are only shown in the docs. A stale table has already made the check fail.

    Importing Great Expectations takes seconds, so only a check does it.
    """
    load(Library.GREAT_EXPECTATIONS)
    shutil.rmtree(docs, ignore_errors=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations within the library, which we cannot fix
        logging.getLogger("great_expectations").setLevel(logging.ERROR)
        met = _run(report, docs, published_rows or after({}, report), limits or CheckConfig())
    return met[SUITE] and met[ORPHANS]


def _run(report: CheckReport, docs: Path, published_rows: PublishedRows, limits: CheckConfig) -> dict[str, bool]:
    """Return for each suite whether it succeeds."""
    import great_expectations as gx
    import pandas as pd
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    # Without the default site, because the library would create a temporary folder for it.
    own = DataContextConfig(store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False))
    context = gx.get_context(mode="ephemeral", project_config=own)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    folder = str(docs).replace("$", r"\$")  # the library reads $NAME as a variable of the environment
    context.add_data_docs_site(
        "parity",
        {
            "class_name": "SiteBuilder",
            "show_how_to_buttons": False,
            "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": folder},
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        },
    )
    source = context.data_sources.add_pandas("source_and_lake")
    where = "no LSN" if report.lsn is None else f"LSN {report.lsn}"
    ages = ("age_hours", "full_age_hours")
    tables = pd.DataFrame(columns(published_rows.tables, ("table", "status", "lsn", *ages)))
    references = pd.DataFrame(
        columns(published_rows.references, ("name", "table", "references", "lsn", "references_lsn", "orphans")),
        dtype=object,
    ).astype({"orphans": "Int64"})
    success = {}
    for suite, data, name in (
        (parity_suite(), frame(report), "table"),
        (published_suite(limits), tables.astype(dict.fromkeys(ages, "Float64")), "table"),
        (references_suite(), references, "name"),
        (orphans_suite(), references, "name"),
    ):
        for column in data.columns.intersection(["table", "name", "references"]):
            data[column] = data[column].map(_without_markup)
        asset = source.add_dataframe_asset(suite.name)
        definition = context.validation_definitions.add(
            gx.ValidationDefinition(
                name=suite.name,
                data=asset.add_batch_definition_whole_dataframe("tables"),
                suite=context.suites.add(suite),
            )
        )
        checkpoint = context.checkpoints.add(
            gx.Checkpoint(
                name=suite.name,
                validation_definitions=[definition],
                result_format={"result_format": "COMPLETE", "unexpected_index_column_names": [name]},
            )
        )
        result = checkpoint.run(
            batch_parameters={"dataframe": data}, run_id=gx.RunIdentifier(run_name=where.replace("/", "-"))
        )
        success[suite.name] = bool(result.success)
    context.build_data_docs(site_names=["parity"])
    return success


def parity_suite() -> Any:
    """Return the expectations that prove parity."""
    import great_expectations as gx

    expect = gx.expectations
    found = gx.ExpectationSuite(name=SUITE)
    found.add_expectation(expect.ExpectTableRowCountToBeBetween(min_value=1))
    found.add_expectation(expect.ExpectColumnValuesToNotBeNull(column="lsn"))
    found.add_expectation(expect.ExpectColumnValuesToBeInSet(column="status", value_set=[CheckStatus.IDENTICAL.value]))
    for column in _COUNTS:
        found.add_expectation(expect.ExpectColumnValuesToNotBeNull(column=column))
    for column in map(str, RowClass):
        found.add_expectation(expect.ExpectColumnValuesToBeBetween(column=column, min_value=0, max_value=0))
    found.add_expectation(expect.ExpectColumnPairValuesToBeEqual(column_A="rows", column_B="identical"))
    return found


def published_suite(limits: CheckConfig) -> Any:
    """Return the expectations for readers: no failed table, and recent proofs and full comparisons."""
    import great_expectations as gx

    expect = gx.expectations
    found = gx.ExpectationSuite(name="published")
    found.add_expectation(expect.ExpectColumnValuesToBeInSet(column="status", value_set=[CheckStatus.IDENTICAL.value]))
    found.add_expectation(expect.ExpectColumnValuesToNotBeNull(column="lsn"))
    # A full comparison is due after `full_hours`. Twice that time means that the schedule does not run.
    most = {"age_hours": limits.fresh_hours, "full_age_hours": max(1.0, 2 * limits.full_hours)}
    for column, hours in most.items():
        found.add_expectation(expect.ExpectColumnValuesToBeBetween(column=column, min_value=0, max_value=hours))
    return found


def references_suite() -> Any:
    """Return the expectation that published tables that reference each other are at one LSN."""
    import great_expectations as gx

    found = gx.ExpectationSuite(name="references")
    found.add_expectation(
        gx.expectations.ExpectColumnPairValuesToBeEqual(
            column_A="lsn", column_B="references_lsn", ignore_row_if="neither"
        )
    )
    return found


def orphans_suite() -> Any:
    """Return the expectation that every proven row has the row that its foreign key references."""
    import great_expectations as gx

    found = gx.ExpectationSuite(name=ORPHANS)
    found.add_expectation(gx.expectations.ExpectColumnValuesToBeBetween(column="orphans", min_value=0, max_value=0))
    return found


def frame(report: CheckReport) -> pd.DataFrame:
    """Return one row per table: table, lsn, status and the counts (NA if nothing was compared)."""
    import pandas as pd

    lsn = None if report.lsn is None else str(report.lsn)
    rows = [
        {"table": t.table, "lsn": lsn, "status": t.status.value} | {name: getattr(t, name) for name in _COUNTS}
        for t in report.tables
    ]
    found = pd.DataFrame(rows, columns=["table", "lsn", "status", *_COUNTS])
    return found.astype(dict.fromkeys(_COUNTS, "Int64") | {"table": object, "lsn": object, "status": object})


def _without_markup(text: str | None) -> str | None:
    """Replace characters with a meaning in Great Expectations' pages and templates by their full-width forms.

    The pages show names without escapes, so a name could be markup.
    """
    return None if text is None else in_one_line(text).translate({ord(c): ord(c) + 0xFEE0 for c in "<>&\"'${}"})


def _junit(report: CheckReport) -> bytes:
    """Write a test case for each table, foreign key with missing rows, view that is not moved, and failed own model.

    A table not compared is an error, and so is a report without tables. All other cases are failures.
    """
    others = len(report.orphaned) + len(report.unmoved) + len(report.own_failed)
    failures = sum(t.status == CheckStatus.DIFFERENT for t in report.tables) + others
    errors = sum(t.status in (CheckStatus.STALE, CheckStatus.NOT_TAKEN) for t in report.tables) + (not report.tables)
    cases = max(1, len(report.tables)) + others
    root = ET.Element(
        "testsuite", name=SUITE, tests=str(cases), failures=str(failures), errors=str(errors), skipped="0"
    )
    for table in report.tables:
        case = ET.SubElement(root, "testcase", classname=SUITE, name=in_one_line(table.table))
        if table.status != CheckStatus.IDENTICAL:
            kind = "failure" if table.status == CheckStatus.DIFFERENT else "error"
            message = f"{table.status}: {table.reason or 'rows differ'}"
            ET.SubElement(case, kind, message=in_one_line(message)).text = in_one_line(
                f"modified {table.modified}, added {table.added}, removed {table.removed}"
            )
    if not report.tables:
        case = ET.SubElement(root, "testcase", classname=SUITE, name="tables")
        ET.SubElement(case, "error", message="no table was compared")
    for reference in report.orphaned:
        case = ET.SubElement(root, "testcase", classname=ORPHANS, name=in_one_line(reference.key.name))
        message = report.in_words(reference) or f"{reference.orphans} rows lack what they reference"
        ET.SubElement(case, "failure", message=in_one_line(message))
    for view, reason in report.unmoved.items():
        case = ET.SubElement(root, "testcase", classname=VIEWS, name=in_one_line(view))
        ET.SubElement(case, "failure", message=in_one_line(reason))
    for failed in report.own_failed:
        case = ET.SubElement(root, "testcase", classname=OWN_MODELS, name=in_one_line(failed.partition(": ")[0]))
        ET.SubElement(case, "failure", message=in_one_line(failed))
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return re.sub("[\ufffe\uffff]", "\ufffd", text.decode()).encode()  # XML cannot contain these two
