"""Prove, at one exact LSN, that the lake has the rows that the source showed.

A cut gives the LSN and a snapshot that shows exactly its rows. The source's figures are read in that snapshot, the lake
is drained and built to the LSN, and both are compared. There is no tolerance and no retry until equal: each table is
identical, different, stale, or not taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.quality import source_rows
from toolkit.quality.built_tables import Build, BuiltTables, build_tables, moved
from toolkit.quality.cut import Drain, open_cut
from toolkit.quality.report import CheckReport, Classes, Reference, Sample, TableCheck, noted
from toolkit.quality.row_classes import Kept, classify
from toolkit.rawlog.states import State, with_parts
from toolkit.values import progress
from toolkit.values.errors import CdcError, LakeError, TableDamaged, UnknownTable
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.names import command, lake_table
from toolkit.values.outcome import CheckStatus, ProofKind
from toolkit.values.row_line import Comparison, Figures, chosen, comparison, differing, total

if TYPE_CHECKING:
    from toolkit.lake.applied import Applied
    from toolkit.lake.opened import Lake
    from toolkit.lake.row_lines import Side
    from toolkit.quality.differing_rows import DifferingRows
    from toolkit.quality.incremental import Proof
    from toolkit.quality.source_rows import Taken
    from toolkit.rawlog.states import TableState
    from toolkit.source.opened import Source
    from toolkit.values.config import CheckConfig
    from toolkit.values.source_access import SourceAccess
    from toolkit.values.table import ForeignKey, TableVersion

_log = logger(__name__)


def check(
    source: SourceAccess,
    lake: Lake,
    check: CheckConfig,
    tables: Sequence[str] = (),
    *,
    drain: Drain,
    build: Build,
    full: bool = False,
    threads: int,
    own_failed: Sequence[str] = (),
) -> CheckReport:
    """Compare `tables` (all captured ones if empty) with the source at one LSN, report, and publish what is proven.

    Drains and builds up to that LSN first. With `full`, every row of every table is compared.
    `own_failed`, to which `build` may add, has the user's models that failed.

    Raises:
        UnknownTable: a table is not known, and nothing was done; or it has no rows in the log at the LSN of the check.
        CdcError: drain or build failed, or Great Expectations and the comparison disagree.
    """
    from toolkit.quality import expectations, published
    from toolkit.quality.differing_rows import DifferingRows

    rows = DifferingRows(lake.access)
    report = compare(source, lake, check, tables, drain=drain, build=build, full=full, rows=rows)
    report = replace(report, own_failed=tuple(dict.fromkeys(own_failed)))
    with progress.stage("publishing"):
        expectations.validate(lake.ledger, report, check=check)
        rows.commit()
        shown = published.publish(lake, check, report, complete=not tables, at=rows.checked_at, threads=threads)
        report = replace(report, published=shown.moved, unmoved=shown.unmoved)
    return replace(report, reports=tuple(str(path) for path in expectations.write(lake.access, report)))


def compare(
    source: SourceAccess,
    lake: Lake,
    check: CheckConfig,
    tables: Sequence[str] = (),
    *,
    drain: Drain,
    build: Build,
    full: bool = False,
    rows: DifferingRows | None = None,
) -> CheckReport:
    """Drain, build and compare, without reports and publishing. `rows` receives the differing rows."""
    from toolkit.history import versions
    from toolkit.quality import incremental
    from toolkit.source import catalog, connection
    from toolkit.source.opened import open_source

    named = [versions.resolve(lake.ledger, name) for name in tables]
    wanted = with_parts(lake.ledger, {table.relid for table in named})
    with ExitStack() as stack:
        opened = stack.enter_context(open_source(source))
        try:
            lsn = open_cut(opened, lake, stack, drain)
            taken = source_rows.take(opened, check, wanted, {} if full else incremental.candidates(lake.ledger, check))
        except (CdcError, connection.DriverError) as error:
            return _nothing_taken(lake, wanted, f"no exact cut could be made: {connection.one_line(error)}")
        keys, notes = catalog.foreign_keys(opened.conn), catalog.inherited(opened.conn)
        _log.info("parity cut", extra={"lsn": str(lsn), "tables": len(taken)})
        drain(upto=lsn)
        if named:  # a partition may be newer than the last drain
            wanted |= taken.keys() | with_parts(lake.reread(), wanted)
        built = build_tables(lake, wanted, build)
        if built.lsn != lsn:
            return _nothing_taken(lake, wanted, f"the lake is at {built.lsn}, the source was read at {lsn}")
        comparing = _Comparing(opened, lake, check, lsn, taken, wanted, built, rows)
        _require_rows(comparing, named)
        results, references = comparing.references(keys, comparing.results())  # needs the open snapshot
    results = noted(sorted(results, key=lambda t: t.table), notes)
    return CheckReport(lsn, results, references=references, batch_id=comparing.batch_id)


def _require_rows(comparing: _Comparing, named: Sequence[TableVersion]) -> None:
    """Refuse a named table that has no result: a check without it would succeed."""
    found = {*comparing.live, *comparing.taken, *comparing.states}
    for table in (table for table in named if table.relid not in found):
        raise UnknownTable(
            f"checking {table.identifier}: the log has no rows of it at {comparing.lsn}: it was dropped, or its rows"
            " are not captured; name tables that `cdc status` lists"
        )


class _Comparing:
    """The comparison of all tables at one LSN."""

    def __init__(
        self,
        source: Source,
        lake: Lake,
        check: CheckConfig,
        lsn: Lsn,
        taken: Mapping[int, Taken],
        wanted: set[int],
        built: BuiltTables,
        rows: DifferingRows | None,
    ) -> None:
        from toolkit.lake import evidence
        from toolkit.lake.proofs import proven
        from toolkit.rawlog.states import live_tables, table_states

        ledger = lake.reread()
        self.batch_id = built.batch_id
        self.access, self.check = lake.access, check
        self.ledger, self.source, self.lsn = ledger, source, lsn
        self.taken = dict(taken)
        self.rows = rows
        self.spark = lake.spark  # in ANSI mode, whatever dbt changed in the shared session
        self.live = {t.relid: t for t in live_tables(ledger) if not wanted or t.relid in wanted}
        self.built = built
        self.made: dict[int, Applied] = {}
        proofs = [t.proof.batch_id for t in taken.values() if t.proof is not None]
        self.touched = evidence.touched_tables(lake.spark, ledger, after=min(proofs)) if proofs else {}
        states = table_states(ledger, proven(lake.access, ledger))
        self.states = {s.relid: s for s in states if not wanted or s.relid in wanted}

    def results(self) -> tuple[TableCheck, ...]:
        """Return one result per table. If a table cannot be compared, its result has the reason."""
        from toolkit.lake.applied import applied, misshapen
        from toolkit.lake.row_lines import Side
        from toolkit.quality.cause import rebuild

        found: list[TableCheck] = []
        sides: list[Side] = []
        made = self.made
        for relid in progress.each("comparing", "tables", sorted(self.live.keys() | self.taken.keys())):
            refused = self._refused(relid)
            if refused is not None:
                found.append(refused)
                continue
            made[relid] = self.built.older.get(relid) or applied(self.access, self.live[relid])
            reason = moved(self.built.news, relid, made[relid])
            if reason is not None:
                found.append(replace(self._named(self.live[relid]), reason=reason, remedy="cdc check"))
                continue
            shape = misshapen(self.live[relid], made[relid])
            if shape is not None:
                reason, remedy = f"its columns in the lake are not those of the log: {shape}", rebuild(self.live[relid])
                found.append(replace(self._named(self.live[relid]), reason=reason, remedy=remedy))
                continue
            plan = comparison(self.live[relid], self.check.buckets)
            side = Side(plan, made[relid].snapshot_id, self.access.names)
            if self.taken[relid].proof is not None:
                done = self._incremental(side)
                if done is not None:
                    found.append(done)
                    continue
            sides.append(replace(side, plan=replace(side.plan, buckets=self.taken[relid].plan.buckets)))
        for relid in self.states.keys() - self.live.keys() - self.taken.keys():
            # The table was captured and is no longer published. It cannot be compared, so the check cannot succeed.
            state = self.states[relid]
            stale = [part for part in state.parts if part in self.states and self.states[part].state != State.OK]
            if state.parts and (stale or state.state == State.OK):
                continue  # its rows are those of its partitions, which have results of their own
            found.append(_stale(TableCheck(state.table, relid, CheckStatus.NOT_TAKEN), state))
        figures = self._lake_figures(sides)
        for side in sides:
            result = self._named(side.plan.table)
            if not made[side.plan.table.relid].exists:
                found.append(replace(result, reason="it was not built", remedy="cdc build"))
                continue
            try:
                found.append(self._compared(result, side, figures[side.plan.table.relid]))
            except Exception as error:
                found.append(self._failed(result, error))
        return tuple(found)

    def references(
        self, keys: Sequence[ForeignKey], results: Sequence[TableCheck]
    ) -> tuple[tuple[TableCheck, ...], tuple[Reference, ...]]:
        """Count the rows that violate each foreign key, if this check has fully proven one table of the two.

        The other may be a small one that nothing has touched. A table that is proven by touched keys is too large to be
        joined each time. Return the results without a proof for tables that turned out to lack files, and the counts.
        """
        from toolkit.lake import references as lake
        from toolkit.lake.row_lines import Side

        proven = {r.relid: r.proof for r in results if r.status == CheckStatus.IDENTICAL}
        whole = {relid for relid, kind in proven.items() if kind == ProofKind.FULL}
        small = {r for r, kind in proven.items() if kind == ProofKind.CARRIED and not self._large(r)}
        found = []
        unread: dict[int, Exception] = {}
        for key in keys:
            both = {key.relid, key.references}
            if not both & whole or not both <= whole | small:
                found.append(Reference(key))
                continue
            order, names = (key.relid, key.references), self.access.names
            child, parent = (Side(comparison(self.live[r], 1), self.made[r].snapshot_id, names) for r in order)
            reason = lake.uncounted_reason(key, child, parent)
            if reason is not None:
                found.append(Reference(key, reason=reason))
                continue
            try:
                count, samples = lake.orphans(self.spark, key, child, parent, samples=self.check.samples)
            except Exception as error:  # such as a lost file of a table whose proof was carried
                unread |= {relid: error for relid in both if self._lacks_files(self.live[relid])}
                found.append(Reference(key, reason=f"the count failed: {_first_line(error)}"))
                continue
            found.append(Reference(key, count, samples))
        return tuple(self._failed(r, unread[r.relid]) if r.relid in unread else r for r in results), tuple(found)

    def _named(self, table: TableVersion) -> TableCheck:
        taken = self.taken.get(table.relid)
        fingerprint = None if taken is None else taken.fingerprint
        return TableCheck(table.identifier, table.relid, CheckStatus.NOT_TAKEN, fingerprint=fingerprint)

    def _refused(self, relid: int) -> TableCheck | None:
        """Return the result that says why this table cannot be compared; None if it can."""
        table, state, taken = self.live.get(relid), self.states.get(relid), self.taken.get(relid)
        if table is None:
            assert taken is not None
            name = taken.plan.table.identifier
            reason = "it is not captured at this LSN"
            return TableCheck(name, relid, CheckStatus.NOT_TAKEN, reason=reason, remedy=command("repair", name))
        result = self._named(table)
        if state is not None and not state.comparable:
            return _stale(result, state)
        if relid in self.built.failed:
            return replace(result, reason=self.built.failed[relid], remedy=self._remedy(table, "cdc build"))
        if taken is None:
            return replace(result, reason="the source no longer publishes it", remedy="cdc check")
        if taken.figures is None and taken.proof is None:
            return replace(result, reason=taken.reason, remedy="cdc check")
        if not source_rows.alike(comparison(table, 1), taken.plan):
            reason = (
                "the source's columns are not those of the log at this LSN: altered while the check was taken,"
                " or without a captured event"
            )
            return replace(result, reason=reason, remedy="cdc run")  # its drain compares the catalogs
        return None

    def _large(self, relid: int) -> bool:
        from toolkit.quality import incremental

        proof = self.taken[relid].proof
        return proof is not None and incremental.large(self.check, proof)

    def _keys(self, side: Side, proof: Proof) -> Sequence[tuple[str, ...]] | None:
        """Return the keys that the log touched since the proof. None if the whole table is to be read."""
        from toolkit.quality import incremental

        relid = side.plan.table.relid
        if self.touched.get(relid, proof.batch_id) <= proof.batch_id and incremental.unchanged(self.made[relid], proof):
            return ()
        if not incremental.large(self.check, proof):
            return None
        return incremental.touched(self.spark, self.ledger, side, self.made[relid], proof)

    def _incremental(self, side: Side) -> TableCheck | None:
        """Compare the keys that the log touched. None if the whole table was read instead."""
        from toolkit.quality import incremental
        from toolkit.source import connection
        from toolkit.source.spooling import spool_directory

        relid = side.plan.table.relid
        result, proof = self._named(side.plan.table), self.taken[relid].proof
        assert proof is not None
        try:
            keys = self._keys(side, proof)
            if keys is not None:
                plan = self.taken[relid].plan
                with spool_directory(self.source.access.spool_dir) if keys else nullcontext() as directory:
                    ours = self._touched(plan, keys, directory) if directory is not None else ()
                    done = incremental.compared(
                        self.check, self.spark, side, ours, keys, proof, result, directory=directory,
                        every=None if self.rows is None else self.rows.of(plan, self.lsn),
                    )  # fmt: skip
                samples = self._explained(side, done.samples)
                return _blamed(replace(done, samples=samples), plan)
        except (CdcError, connection.DriverError) as error:
            return replace(result, reason=connection.unread(error), remedy="cdc check")
        except Exception as error:
            return self._failed(result, error)
        with self.source.second_connection() as other:
            self.taken[relid] = source_rows.read_whole(self.source, other, self.taken[relid])
        taken = self.taken[relid]
        return None if taken.figures is not None else replace(result, reason=taken.reason, remedy="cdc check")

    def _touched(self, plan: Comparison, keys: Sequence[tuple[str, ...]], directory: Path) -> Kept:
        """Read the source's lines of the rows with these keys."""
        with (
            self.source.second_connection() as other,
            source_rows.lines(self.source.conn, other, plan, keys, others=self.source.others) as blocks,
        ):
            return Kept((line for block in blocks for line in block), directory / "touched.lines")

    def _lake_figures(self, sides: Sequence[Side]) -> dict[int, Figures | Exception]:
        """Return the lake's figures by relid. If the job for all tables fails, each table gets a job of its own."""
        from toolkit.lake import row_lines, small_lines

        found: dict[int, Figures | Exception] = {}
        try:
            found |= small_lines.figures(self.spark, self.access, sides)
            return found | row_lines.figures(self.spark, [s for s in sides if s.plan.table.relid not in found])
        except Exception as error:
            _log.warning("parity of all tables at once failed", extra={"error": repr(error)[:500]})
        for side in sides:
            try:
                found |= row_lines.figures(self.spark, [side])
            except Exception as error:
                found[side.plan.table.relid] = error
        return found

    def _compared(self, result: TableCheck, side: Side, lake_figures: Figures | Exception) -> TableCheck:
        from toolkit.source import connection

        if isinstance(lake_figures, Exception):
            raise lake_figures
        source = self.taken[result.relid].figures
        assert source is not None
        rows = total(source)
        buckets = differing(source, lake_figures)
        result = replace(result, rows=rows, snapshot_id=side.snapshot_id, full_lsn=self.lsn, full_at=datetime.now(UTC))
        if not buckets:
            return replace(result, status=CheckStatus.IDENTICAL, identical=rows, modified=0, added=0, removed=0)
        result = replace(result, status=CheckStatus.DIFFERENT)
        try:
            found = self._descend(
                side, buckets, sum(f[b].rows for f in (source, lake_figures) for b in buckets if b in f)
            )
        except (CdcError, connection.DriverError) as error:
            reason = f"{len(buckets)} of {side.plan.buckets} buckets differ; the rows could not be listed"
            return replace(result, reason=f"{reason}: {_first_line(error)}")
        alike = sum(f.rows for bucket, f in source.items() if bucket not in buckets)
        return _blamed(
            replace(
                result,
                identical=alike + found.identical,
                modified=found.modified,
                added=found.added,
                removed=found.removed,
                samples=self._explained(side, found.samples),
            ),
            side.plan,
        )

    def _descend(self, side: Side, buckets: Sequence[int], expected: int) -> Classes:
        """Read the rows of differing buckets from both sides and classify them."""
        from toolkit.lake import row_lines
        from toolkit.source.spooling import spool_directory

        plan = self.taken[side.plan.table.relid].plan
        with (
            spool_directory(self.source.access.spool_dir) as directory,
            self.source.second_connection() as other,
            source_rows.lines(self.source.conn, other, plan, others=self.source.others) as blocks,
        ):
            return classify(
                chosen(blocks, plan.buckets, buckets),
                row_lines.lines(self.spark, side, buckets),
                columns=[c.name for c in plan.columns],
                key=plan.key,
                samples=self.check.samples,
                natives=plan.natives,
                expected=expected,
                directory=directory,
                every=None if self.rows is None else self.rows.of(side.plan, self.lsn),
            )

    def _failed(self, result: TableCheck, error: Exception) -> TableCheck:
        """Return the result of a table that could not be read. It is not proven; the other tables still can be."""
        _log.warning("parity not taken", extra={"table": result.table, "error": repr(error)[:500]})
        table, reason = self.live[result.relid], f"the comparison failed: {_first_line(error)}"
        return replace(self._named(table), reason=reason, remedy=self._remedy(table, "cdc check"))

    def _remedy(self, table: TableVersion, otherwise: str) -> str:
        from toolkit.lake import reads
        from toolkit.quality.cause import rebuild

        try:
            for name in self._names(table):
                reads.metadata(self.access, name)
        except TableDamaged:
            return "cdc doctor"
        return rebuild(table) if self._lacks_files(table) else otherwise

    def _lacks_files(self, table: TableVersion) -> bool:
        from toolkit.lake import scans

        try:
            for name in self._names(table):
                scans.require_files(self.access, name)
        except LakeError:
            return True
        return False

    def _names(self, table: TableVersion) -> list[str]:
        """Return the names in the lake of what a build makes of a table."""
        names = self.access.names
        return [f"{layer}.{lake_table(table.schema, table.name)}" for layer in (names.current, names.history)]

    def _explained(self, side: Side, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Add causes to the samples. A failure here does not change the result."""
        from toolkit.lake.proofs import proofs_by_relid
        from toolkit.quality import cause

        if not samples:
            return ()
        try:
            relid = side.plan.table.relid
            proven = proofs_by_relid(self.ledger).get(relid, {}).get("snapshot_id")
            made = self.made[relid]
            return cause.explain(self.spark, self.ledger, side, made, samples, upto=self.lsn, proven=proven)
        except Exception as error:
            _log.warning("no cause found", extra={"table": side.plan.table.identifier, "error": repr(error)[:500]})
            return samples


def _blamed(result: TableCheck, plan: Comparison) -> TableCheck:
    """Add the counts in words, and the remedy."""
    from toolkit.quality import cause

    if result.status != CheckStatus.DIFFERENT:
        return result
    reason = f"{result.modified} rows modified, {result.added} added, {result.removed} removed"
    return replace(result, reason=reason, remedy=cause.remedy(plan, result))


def _stale(result: TableCheck, state: TableState) -> TableCheck:
    since = f" since {state.from_lsn}" if state.from_lsn else ""
    status = CheckStatus.STALE if state.state == State.STALE else CheckStatus.NOT_TAKEN
    return replace(result, status=status, reason=f"{state.state}{since}: {state.reason}", remedy=state.remedy)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _nothing_taken(lake: Lake, wanted: set[int], reason: str) -> CheckReport:
    """Return a report in which nothing is proven."""
    from toolkit.rawlog.states import live_tables

    tables = (t for t in live_tables(lake.reread()) if not wanted or t.relid in wanted)
    results = (TableCheck(t.identifier, t.relid, CheckStatus.NOT_TAKEN, reason=reason) for t in tables)
    return CheckReport(None, tuple(results))
