"""Record what a check has proven, and move the views of `published` to it.

`ops.published` has one row for each table: what its view shows, the LSN of that proof, and the result of the last
check. It changes in one commit, and the views are updated after it. The next check completes what a killed check has
not done. `ops.parity_results` keeps every result of every check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from toolkit.lake import check_results, published_views, reads, root_views, table_states
from toolkit.lake.proofs import checked_generation, different_lsn, generation_of, proofs_by_relid
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Baseline, Covers, Kind, Origin
from toolkit.values.errors import CommitConflict
from toolkit.values.lake_access import LakeAccess
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.names import lake_table
from toolkit.values.outcome import CheckStatus, ProofKind
from toolkit.values.threads import in_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.lake.opened import Lake
    from toolkit.values.config import CheckConfig
    from toolkit.values.table import TableVersion

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """The names of the tables whose view moved, and why other views are left as they are."""

    moved: tuple[str, ...]
    unmoved: Mapping[str, str]


def publish(
    lake: Lake,
    check: CheckConfig,
    report: CheckReport,
    *,
    complete: bool = True,
    at: datetime | None = None,
    threads: int,
) -> Published:
    """Move the views of tables that are proven identical to the table snapshots that were compared.

    Tables that are not proven keep their last view. With `complete` (every table was checked), the views of tables that
    no longer exist are deprecated, and dropped later. `at` is the time of the check (now if None).

    What is published moves only forward: a check that ends late changes nothing of a table that a newer one has judged.

    Raises:
        CommitConflict: another check published meanwhile, or a new log has begun; this one published nothing.
    """
    from toolkit.lake.session import own_session
    from toolkit.rawlog.states import live_tables

    ledger = lake.reread()
    generation = _generation(ledger, report)
    spark = own_session(lake.access)
    check_results.ensure(lake.access, spark)
    _note(ledger, report)
    tables = {t.relid: t for t in live_tables(ledger)}
    names = lake.access.names
    base = reads.snapshot_id(lake.access, names.proofs)
    empty = dict.fromkeys(check_results.columns(names.proofs))  # a lake of an older version lacks some of them
    before = {} if base is None else {r: empty | row for r, row in proofs_by_relid(ledger, base).items()}
    now = at or datetime.now(UTC)
    after: dict[int, dict[str, Any]] = {}
    moved: list[str] = []
    tags, unkept = _keep(lake.access, spark, report, tables, before, generation, threads=threads)
    for result in report.tables:
        table, known = tables.get(result.relid), before.get(result.relid, {})
        if report.lsn is not None and _newer(known, generation, report.lsn):
            _log.warning("a newer check has judged the table", extra={"table": result.table, "lsn": str(report.lsn)})
            after[result.relid] = known
            continue
        row = empty | known | {"relid": result.relid, "table": result.table}
        row |= {"status": result.status, "reason": result.reason, "checked_at": now}
        row["different_lsn"] = _different(report, result, known, generation)
        row["orphans"] = _orphans(report, result, known.get("orphans"))
        row |= {"generation": generation, "checked_lsn": None if report.lsn is None else int(report.lsn)}
        if table is not None and report.lsn is not None and result.relid in tags:
            name, tag = lake_table(table.schema, table.name), tags[result.relid]
            row |= {"lsn": int(report.lsn), "proven_at": now, "batch_id": report.batch_id}
            row |= {"relation": name, "tag": tag, "snapshot_id": result.snapshot_id}
            row |= {"full_lsn": result.full_lsn, "full_at": result.full_at, "fingerprint": result.fingerprint}
            if result.proof == ProofKind.FULL:
                row["rows"] = result.rows
            moved.append(table.identifier)
        after[result.relid] = row
    kept = before
    if complete and report.lsn is not None:
        kept = {relid: row for relid, row in before.items() if relid in tables or relid in after}
    if any(result.status == CheckStatus.DIFFERENT for result in report.tables):
        table_states.withhold(lake.access)  # the build wrote them at this batch, when the difference was not known yet
    check_results.replace_read(lake.access, names.proofs, (kept | after).values(), base=base)
    followed, unmoved = None, dict[str, str]()
    while (shown := reads.snapshot_id(lake.access, names.proofs)) != followed:  # a newer check may overtake this one
        days = check.deprecated_days
        unmoved = published_views.follow(lake.access, spark, now, threads=threads, deprecated_days=days)
        unmoved |= root_views.follow_published(lake.access, spark, ledger, now, deprecated_days=days)
        followed = shown
    unmoved |= unkept
    behind = {row["table"] for row in after.values() if f"{names.published}.{row.get('relation')}" in unmoved}
    moved = [table for table in moved if table not in behind]
    results = [_result(report, result, after[result.relid], result.table in moved, now) for result in report.tables]
    check_results.write(lake.access, lake.access.names.results, results, overwrite=False)
    table_states.write(lake.reread())
    return Published(tuple(moved), unmoved)


def _keep(
    access: LakeAccess,
    spark: SparkSession,
    report: CheckReport,
    tables: Mapping[int, TableVersion],
    before: Mapping[int, Mapping[str, Any]],
    generation: int,
    *,
    threads: int,
) -> tuple[dict[int, str], dict[str, str]]:
    """Tag the table snapshots that are proven. Tables with a newer check are left out.

    Return the tags by relid, and why tables have none, by the name of their view.
    """
    made, unkept = dict[int, str](), dict[str, str]()
    if report.lsn is None:
        return made, unkept
    lsn = report.lsn
    proven = [
        result
        for result in report.tables
        if _proven(result) and result.relid in tables and not _newer(before.get(result.relid, {}), generation, lsn)
    ]

    def tag(result: TableCheck) -> None:
        table = tables[result.relid]
        name, known = lake_table(table.schema, table.name), before.get(result.relid, {})
        if result.proof == ProofKind.CARRIED and (known["snapshot_id"], known["relation"]) == (
            result.snapshot_id,
            name,
        ):
            made[result.relid] = str(known["tag"])
            return
        with reads.noting_damage(unkept, f"{access.names.published}.{name}"):
            made[result.relid] = published_views.keep(access, spark, name, result.snapshot_id, generation)

    for _ in in_threads(tag, proven, threads):
        pass
    return made, unkept


def _generation(ledger: Ledger, report: CheckReport) -> int:
    """Return the generation of the log, which is the one that was compared.

    Raises:
        CommitConflict: a new log has begun since. Its LSNs and relids have nothing to do with what was compared.
    """
    last = ledger.last()
    current = last.generation if last is not None else 1
    compared = next((b.generation for b in ledger.batches() if b.batch_id == report.batch_id), current)
    if compared != current:
        raise CommitConflict(
            f"publishing what was compared of generation {compared} of the log: generation {current} has begun"
            " meanwhile; nothing was published, run `cdc check`"
        )
    return current


def _newer(known: Mapping[str, Any], generation: int, lsn: Lsn) -> bool:
    """Return whether a row of `ops.published` is of a later position than a check at an LSN of a generation."""
    of = generation_of(known.get("tag"))
    proven, checked = (of, known.get("lsn")), (checked_generation(known), known.get("checked_lsn"))
    return any(None not in at and at > (generation, lsn) for at in (proven, checked))


def _note(ledger: Ledger, report: CheckReport) -> None:
    """Write a baseline of scope `check` for tables that were copied in part: all rows are known from here on."""
    from toolkit.rawlog.states import unproven

    last = ledger.last()
    rows = {r.relid: r for r in report.tables if _proven(r) and r.full_lsn is not None}
    found = unproven(ledger, {relid: r.full_lsn for relid, r in rows.items() if r.full_lsn is not None})
    if last is None or not found:
        return
    batch_id, versions = last.batch_id + 1, ledger.latest_versions()
    events = [
        Event(
            batch_id=batch_id, generation=last.generation, **order.made_at(lsn)._asdict(), ordinal=order.BASELINE,
            origin=Origin.CHECK, kind=Kind.BASELINE, relid=relid, schema_id=versions[relid].schema_id,
            payload=Baseline(lsn, rows[relid].rows, Covers.CHECK).to_json(),
        )
        for relid, lsn in found.items()
    ]  # fmt: skip
    ledger.append_empty(last.next(events, origin=Origin.CHECK), events)


def _different(report: CheckReport, result: TableCheck, known: Mapping[str, Any], generation: int) -> int | None:
    """Return the LSN at which a table was last found to differ. A check that compared nothing says nothing about it."""
    if result.status in (CheckStatus.DIFFERENT, CheckStatus.IDENTICAL):
        return None if report.lsn is None or result.status == CheckStatus.IDENTICAL else int(report.lsn)
    return different_lsn(known) if known and known["generation"] in (None, generation) else None


def _orphans(report: CheckReport, result: TableCheck, known: int | None) -> int | None:
    """Count the rows whose referenced row is missing; at least as many as known where a key was not counted."""
    if report.lsn is None:
        return known  # without a cut no key was looked at
    mine = [r for r in report.references if r.key.relid == result.relid]
    counted = sum(r.orphans or 0 for r in mine)
    return counted if all(r.orphans is not None or r.reason is not None for r in mine) else max(counted, known or 0)


def _proven(result: TableCheck) -> bool:
    return result.status == CheckStatus.IDENTICAL and result.snapshot_id is not None


def published(ledger: Ledger) -> dict[str, Lsn]:
    """Read the LSN of each published table, without a JVM; none that is proven only in an earlier generation."""
    from toolkit.rawlog.states import live_tables

    last, rows = ledger.last(), proofs_by_relid(ledger)
    mine = {r: row["lsn"] for r, row in rows.items() if last and generation_of(row["tag"]) == last.generation}
    return {t.identifier: Lsn(mine[t.relid]) for t in live_tables(ledger) if t.relid in mine}


def published_lsn(ledger: Ledger) -> Lsn | None:
    """Return the oldest LSN of the published tables; None before the first successful check of the generation."""
    return min(published(ledger).values(), default=None)


def _result(
    report: CheckReport, result: TableCheck, row: Mapping[str, Any], published: bool, now: datetime
) -> dict[str, Any]:
    counts = {name: getattr(result, name) for name in ("rows", "identical", "modified", "added", "removed")}
    found = {"checked_at": now, "lsn": report.lsn, "table": result.table, "relid": result.relid}
    found |= {"status": result.status, "proof": result.proof, "full_lsn": result.full_lsn, "published": published}
    found |= {"generation": row["generation"], "tag": row["tag"], "reason": result.reason, "remedy": result.remedy}
    samples = [s.to_dict() for s in result.samples]
    return counts | found | {"causes": json.dumps(samples, ensure_ascii=False) if samples else None}
