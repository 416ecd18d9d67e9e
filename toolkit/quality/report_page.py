"""Render the report of a check as one page that needs no network."""

from __future__ import annotations

import html
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import PurePosixPath
from urllib.parse import quote

from toolkit.quality.report import CheckReport, TableCheck, cut, headline, shown
from toolkit.values.names import in_one_line
from toolkit.values.outcome import CheckStatus

_STYLE = """
<style>
:root { color-scheme: light dark }
body { font: 14px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em }
h1, h2, h3 { line-height: 1.2 } h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 1.6em }
table { border-collapse: collapse; margin: .6em 0; width: 100% }
th, td { border-bottom: 1px solid #8884; padding: .3em .6em; text-align: left; vertical-align: top }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums }
.identical { color: #18794e } .different, .stale, .not_taken { color: #c62a2f; font-weight: 600 }
code { background: #8882; padding: .1em .3em; border-radius: 3px } ul { padding-left: 1.2em }
</style>
"""


def render(report: CheckReport, docs: Iterable[str]) -> str:
    """Render a report as one HTML page that loads nothing. `docs`: addresses of Great Expectations' pages."""
    where = f"at LSN {report.lsn}" if report.lsn is not None else "not taken"
    title = _text(f"Parity {where}: {headline(report)}")
    figures = "".join(f'<th class="n">{name}</th>' for name in ("rows", "identical", "modified", "added", "removed"))
    head = f"<th>table</th><th>status</th>{figures}<th>proof</th><th>last full proof</th>"
    links = "".join(f'<li><a href="{quote(page)}">{_text(PurePosixPath(page).parts[-4])}</a></li>' for page in docs)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>{_STYLE}</head><body>'
        f"<h1>{title}</h1><p>Checked {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC. Rows are <b>modified</b> (other cells),"
        " <b>added</b> (in the lake only) or <b>removed</b> (in the source only).</p>"
        f"<table><tr>{head}</tr>{''.join(map(_row, report.tables))}</table>"
        f"{''.join(map(_details, report.tables))}"
        f"{''.join(f'<p>{_text(said)}</p>' for said in map(report.in_words, report.references) if said)}"
        "<h2>Expectations</h2><p>The pages of Great Expectations load their styles and scripts from the network.</p>"
        f"<ul>{links}</ul><p>Rules inside one table (not null, unique keys, enum labels, ranges of"
        " types) are dbt tests of the models: <code>dbt test</code> in <code>dbt_project</code>.</p></body></html>\n"
    )


def _row(table: TableCheck) -> str:
    counts = (table.rows, table.identical, table.modified, table.added, table.removed)
    cells = "".join(f'<td class="n">{"" if n is None else f"{n:,}"}</td>' for n in counts)
    mark = "\N{CHECK MARK}" if table.status == CheckStatus.IDENTICAL else "\N{BALLOT X}"
    full = f"{table.full_at:%Y-%m-%d %H:%M} UTC at {table.full_lsn}" if table.full_at is not None else ""
    return (
        f'<tr><td>{_text(table.table)}</td><td class="{table.status}">{mark} {table.status}</td>{cells}'
        f"<td>{table.proof if table.rows is not None else ''}</td><td>{full}</td></tr>"
    )


def _details(table: TableCheck) -> str:
    if table.status == CheckStatus.IDENTICAL and not table.reason:
        return ""
    remedy = f" <code>{_text(table.remedy)}</code>" if table.remedy else ""
    rows = []
    for sample in table.samples:
        key = ", ".join(f"{name} = {shown(cut(value))}" for name, value in sample.key)
        cells = "<br>".join(
            _text(f"{d.column}: source {shown(d.source)}, lake {shown(d.lake)}") for d in sample.differences
        )
        cause = "" if sample.cause is None else _text(f"{sample.cause.kind}: {sample.cause.text}")
        rows.append(f"<tr><td>{sample.kind}</td><td>{_text(key)}</td><td>{cells}</td><td>{cause}</td></tr>")
    head = "<tr><th>class</th><th>key</th><th>cells</th><th>cause</th></tr>"
    listed = f"<table>{head}{''.join(rows)}</table>" if rows else ""
    return f"<h2>{_text(table.table)}</h2><p>{_text(table.reason or '')}{remedy}</p>{listed}"


def _text(text: str) -> str:
    """Show a text literally: no part of it is markup, and no character of it reverses the text around it."""
    return html.escape(in_one_line(text))
