"""Make Great Expectations' Data Docs readable without a network, and add a first page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from toolkit.quality.report import CheckReport, TableCheck, cut, headline, shown

#: Stylesheets, scripts and images from other hosts, and the scripts that need them.
_FETCHED = re.compile(
    r"<link\b[^>]*>|<script\b.*?</script>|<img\b[^>]*>|<footer\b.*?</footer>|<!--.*?-->|url\(['\"]?https?:[^)]*\)",
    re.DOTALL | re.IGNORECASE,
)
#: Characters of names that Great Expectations writes into its pages as they are, or reads as a template.
_MARKUP = "<>&\"'$"
_PRIVATE = 0xE000  # of Unicode's private use: a name with such a character is only shown differently
_STYLE = """
<style>
:root { color-scheme: light dark }
body { font: 14px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em }
h1, h2, h3 { line-height: 1.2 } h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 1.6em }
table { border-collapse: collapse; margin: .6em 0; width: 100% }
th, td { border-bottom: 1px solid #8884; padding: .3em .6em; text-align: left; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.identical { color: #18794e } .different, .stale, .not_taken { color: #c62a2f; font-weight: 600 }
code { background: #8882; padding: .1em .3em; border-radius: 3px } ul { padding-left: 1.2em }
nav.navbar, .modal, .ge-expectation-editing-instructions, button, .d-none { display: none }
.badge { border: 1px solid #8886; border-radius: 3px; padding: 0 .3em }
</style>
"""


def masked(text: str | None) -> str | None:
    """Replace the characters of a name that mean something in HTML; `finish` puts them back, escaped."""
    return None if text is None else text.translate({ord(c): _PRIVATE + ord(c) for c in _MARKUP})


def finish(docs: Path, report: CheckReport) -> None:
    """Remove references to other hosts from the pages in `docs`, unmask the names, and write `index.html`."""
    pages = sorted(docs.rglob("*.html"))
    for page in pages:
        text = _FETCHED.sub("", page.read_text(encoding="utf-8"))
        text = text.translate({_PRIVATE + ord(c): html.escape(c) for c in _MARKUP})
        page.write_text(text.replace("</head>", _STYLE + "</head>", 1), encoding="utf-8")
    found = [page.relative_to(docs) for page in pages if page.relative_to(docs).parts[0] == "validations"]
    (docs / "index.html").write_text(_index(report, found), encoding="utf-8")


def _index(report: CheckReport, pages: Iterable[Path]) -> str:
    where = f"at LSN {report.lsn}" if report.lsn is not None else "not taken"
    title = html.escape(f"Parity {where}: {headline(report)}")
    head = "".join(
        f"<th>{name}</th>"
        for name in ("table", "status", "rows", "identical", "modified", "added", "removed", "proof", "last full proof")
    )
    links = "".join(
        f'<li><a href="{quote(page.as_posix())}">{html.escape(page.stem.replace("_", " "))}</a></li>' for page in pages
    )
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>{_STYLE}</head><body>'
        f"<h1>{title}</h1><p>Checked {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC. Rows are <b>modified</b> (other cells),"
        " <b>added</b> (in the lake only) or <b>removed</b> (in the source only).</p>"
        f"<table><tr>{head}</tr>{''.join(map(_row, report.tables))}</table>"
        f"{''.join(map(_details, report.tables))}"
        f"{''.join(f'<p>{html.escape(said)}</p>' for said in map(report.in_words, report.references) if said)}"
        f"<h2>Expectations</h2><ul>{links}</ul><p>Rules inside one table (not null, unique keys, enum labels, ranges of"
        " types) are dbt tests of the models: <code>dbt test</code> in <code>dbt_project</code>.</p></body></html>\n"
    )


def _row(table: TableCheck) -> str:
    counts = (table.rows, table.identical, table.modified, table.added, table.removed)
    cells = "".join(f'<td class="n">{"" if n is None else f"{n:,}"}</td>' for n in counts)
    full = f"{table.full_at:%Y-%m-%d %H:%M} UTC at {table.full_lsn}" if table.full_at is not None else ""
    return (
        f'<tr><td>{html.escape(table.table)}</td><td class="{table.status}">{table.status}</td>{cells}'
        f"<td>{table.proof if table.rows is not None else ''}</td><td>{full}</td></tr>"
    )


def _details(table: TableCheck) -> str:
    if table.status == "identical" and not table.reason:
        return ""
    remedy = f" <code>{html.escape(table.remedy)}</code>" if table.remedy else ""
    rows = []
    for sample in table.samples:
        key = ", ".join(f"{name} = {shown(cut(value))}" for name, value in sample.key)
        cells = "<br>".join(
            html.escape(f"{d.column}: source {shown(d.source)}, lake {shown(d.lake)}") for d in sample.differences
        )
        cause = "" if sample.cause is None else html.escape(f"{sample.cause.kind}: {sample.cause.text}")
        rows.append(f"<tr><td>{sample.kind}</td><td>{html.escape(key)}</td><td>{cells}</td><td>{cause}</td></tr>")
    head = "<tr><th>class</th><th>key</th><th>cells</th><th>cause</th></tr>"
    listed = f"<table>{head}{''.join(rows)}</table>" if rows else ""
    return f"<h2>{html.escape(table.table)}</h2><p>{html.escape(table.reason or '')}{remedy}</p>{listed}"
