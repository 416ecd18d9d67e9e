"""Show what a script of DDL would do to the tables in the lake.

A role without rights runs the DDL in a scratch database with the source's schema, in a transaction that is rolled back.
The rules that a drain applies are applied to the catalog before and after each statement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from toolkit.build.schema_changes import step
from toolkit.decode import ddl
from toolkit.decode.ddl_message import DdlMessage, Rewrite
from toolkit.history import effects
from toolkit.history.effects import EffectClass
from toolkit.history.versions import ChangeKind, changes
from toolkit.rawlog import states
from toolkit.rawlog.event import Captured
from toolkit.rawlog.roots import publish_remedy
from toolkit.values.names import command
from toolkit.values.sql_script import Kind, statements
from toolkit.values.table import TableVersion

if TYPE_CHECKING:
    from toolkit.source.trial import State, Tried
    from toolkit.values.capture_rules import CaptureRules, SourceConfig


class Unclassified(StrEnum):
    """Reason for which a statement has no class of effect."""

    FAILS = "fails"
    REFUSED = "refused"  # not DDL, so it was not run
    SKIPPED = "skipped"  # transaction control
    DIFFERS = "differs"  # only at line 0: the scratch database is not like the source, so the answer may be wrong there


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one statement on one captured table (`table` None: on none).

    A table with the class `SILENT` becomes stale, and `remedy` repairs it.
    """

    line: int
    sql: str
    tag: str
    table: str | None
    effect: EffectClass | Unclassified
    detail: str
    breaks: str | None = None  # what stops working at the source itself after the statement
    remedy: str | None = None

    @property
    def needs_review(self) -> bool:
        """Return whether the script should be examined before it is run."""
        worst = (EffectClass.SILENT, Unclassified.FAILS, Unclassified.REFUSED, Unclassified.DIFFERS)
        return self.effect in worst or self.breaks is not None


def lint(rules: CaptureRules, script: str, *, conninfo: str) -> tuple[Effect, ...]:
    """List the effects of every statement of a script, in order. Only DDL is run, and none of it persists.

    On the source, only the catalog is read.

    Args:
        rules: the source and its tables.
        script: SQL, as psql takes it.
        conninfo: a role without rights in a scratch database (`toolkit.source.scratch.make_scratch`).

    Raises:
        SourceUnavailable, PreflightFailed, ConfigError: the script could not be tried; the message says why.
    """
    from toolkit.source import trial

    tried = tuple(trial.attempt(rules.source, statements(script), conninfo=conninfo))
    if not tried:
        return ()
    apart = differences(rules.source, trial.captured(rules), tried[0].before.tables.values())
    return (*apart, *_effects(rules, tried))


def differences(source: SourceConfig, own: Iterable[TableVersion], copy: Iterable[TableVersion]) -> Iterator[Effect]:
    """List where a scratch database differs from the source in captured tables. Each has its own OIDs and attnums."""
    remedy = "check this table on the source by hand"

    def effect(table: TableVersion, detail: str) -> Effect:
        return Effect(0, "", "", table.identifier, Unclassified.DIFFERS, detail, remedy=remedy)

    here = tuple(own)
    there = {t.identifier: t for t in copy}
    relids = {there[t.identifier].relid: t.relid for t in here if t.identifier in there}
    for table in here:
        found = there.pop(table.identifier, None)
        if found is None:
            yield effect(table, "the scratch database has no such table")
        elif table.columns or table.published:  # otherwise capture is not installed, and only names are known
            apart = changes(table, _numbered(found, table, relids))
            if stated := "; ".join(str(change) for change in apart if change.kind != ChangeKind.COMMENT):
                yield effect(table, f"from the source to the scratch database: {stated}")
    for table in there.values():
        if table.published and source.asks_for(table.schema, table.name):
            yield effect(table, "the source has no such table, or does not capture it")


def _numbered(copy: TableVersion, source: TableVersion, relids: Mapping[int, int]) -> TableVersion:
    """Return a table of a scratch database with the OIDs and attnums of the source, by name."""
    attnums = {c.name: c.attnum for c in source.columns}
    known = {c.attnum: attnums.get(c.name, -c.attnum) for c in copy.columns}
    return replace(
        copy,
        columns=tuple(replace(c, attnum=known[c.attnum]) for c in copy.columns),
        key_attnums=tuple(known[a] for a in copy.key_attnums),
        primary_key=tuple(known[a] for a in copy.primary_key),
        parents=tuple(relids.get(r, -r) for r in copy.parents),
        children=tuple(sorted(relids.get(r, -r) for r in copy.children)),
    )


def _effects(rules: CaptureRules, script: Iterable[Tried]) -> Iterator[Effect]:
    captured: set[str] = set()
    for tried in script:
        captured |= {t.identifier for t in tried.before.tables.values() if t.published}
        yield from statement_effects(rules, tried, captured)


def statement_effects(rules: CaptureRules, tried: Tried, captured: Collection[str]) -> Iterator[Effect]:
    """Return the effects of one statement. `captured`: names that captured tables have or had."""
    statement = tried.statement

    def effect(table: TableVersion | None, kind: EffectClass | Unclassified, detail: str, **more: str | None) -> Effect:
        name = table.identifier if table else None
        return Effect(statement.line, statement.text, tried.tag, name, kind, detail, **more)

    if statement.kind is Kind.CONTROL:
        yield effect(None, Unclassified.SKIPPED, "transaction control: the script is tried as one transaction")
        return
    if statement.kind is Kind.ROWS:
        yield effect(None, EffectClass.EXACT, "row events; not run")
        return
    if statement.kind is Kind.OTHER:
        yield effect(None, Unclassified.REFUSED, f"{tried.tag} is not DDL and was not run: what it does is not known")
        return
    if tried.failure is not None:
        yield effect(None, Unclassified.FAILS, tried.failure)
        return
    before, after = tried.before, tried.after
    silent = dict(_silent(tried))
    found = False
    for relid in sorted(before.tables.keys() | after.tables.keys()):
        old, new = before.tables.get(relid), after.tables.get(relid)
        if old == new and relid not in silent and not _emptied(tried, relid):
            continue
        found = True
        shown = new or old
        assert shown is not None
        detail = _detail(tried, old, new)
        breaks = _breaks(tried, relid)
        emptied = shown.published and _emptied(tried, relid)
        kind = EffectClass.EXACT if emptied else effects.effect(old, new, silent=relid in silent)
        if new and new.identifier in captured and effects.replaces_captured(rules, old, new, after.tables):
            stated = "; ".join(([detail] if detail else []) + [states.UNDER_ITS_NAME])
            yield effect(new, EffectClass.SILENT, stated, breaks=breaks, remedy=publish_remedy(rules.source, new))
        elif kind == EffectClass.SILENT:
            stated = "; ".join((*([detail] if detail else []), *silent[relid]))
            yield effect(shown, kind, stated, breaks=breaks, remedy=command("repair", shown.identifier))
        else:
            yield effect(shown, kind, f"{detail}{_destination(old, new)}", breaks=breaks)
    if not found:
        yield effect(None, EffectClass.NONE, "nothing that is captured changes")


def _silent(tried: Tried) -> Iterator[tuple[int, list[str]]]:
    """Return the reasons by relid, from the rules that a drain applies."""
    before, after = tried.before, tried.after
    created = frozenset(after.tables.keys() - before.tables.keys())
    outlines = {t.relid: {"name": t.name, "parents": t.parents} for t in after.tables.values()}
    found: dict[int, list[str]] = {}
    for relid, new in after.tables.items():
        old = before.tables.get(relid)
        rewrite = _rewrite(tried, relid) if old is not None else 0
        if old is None or (old == new and not rewrite):
            continue
        message = DdlMessage(
            text="",
            event=Captured.COMMAND_END,
            xid=0,
            tag=tried.tag,
            sql=tried.statement.text,
            created=created,
            dropped=(),
            tables=outlines,
            rewrites={relid: Rewrite(rewrite)} if rewrite else {},
            named=None,
            error=None,
        )
        silent = list(ddl.classify(old, new, message, rewrite=rewrite, empty=_empty(tried, relid)))
        if changed := ddl.change_in_strays(old, new):
            silent.append((relid, changed))
        for owner, reason in silent:
            table = after.tables.get(owner)
            if table is not None and (table.published or owner == relid) and reason not in found.setdefault(owner, []):
                found[owner].append(reason)
    return iter((relid, reasons) for relid, reasons in found.items() if reasons)


def _rewrite(tried: Tried, relid: int) -> int:
    """Return the reason bits of a rewrite. TRUNCATE and VACUUM FULL also change the file, but no value."""
    before, after = tried.before, tried.after
    if before.files.get(relid) == after.files.get(relid) or tried.statement.words[0] != "alter":
        return 0
    old, new = before.tables[relid], after.tables[relid]
    was = {c.attnum: c for c in old.columns}
    bits = ddl.REWRITE_PERSISTENCE if old.persistence != new.persistence else 0
    if any(c.attnum not in was or (c.generated and c.default != was[c.attnum].default) for c in new.columns):
        bits |= ddl.REWRITE_DEFAULT
    if any(
        c.attnum in was and (was[c.attnum].type_oid, was[c.attnum].typmod) != (c.type_oid, c.typmod)
        for c in new.columns
    ):
        bits |= ddl.REWRITE_TYPE
    return bits or ddl.REWRITE_ACCESS_METHOD


def _empty(tried: Tried, relid: int) -> bool:
    """Return whether the script itself created or emptied the table, and nothing can have written to it since."""
    return relid in tried.emptied or (tried.born(relid) and relid not in tried.filled)


def _emptied(tried: Tried, relid: int) -> bool:
    return tried.tag == "TRUNCATE TABLE" and tried.before.files.get(relid) != tried.after.files.get(relid)


def _detail(tried: Tried, old: TableVersion | None, new: TableVersion | None) -> str:
    if new is None:
        return "dropped"
    if old == new:
        return "emptied" if tried.tag == "TRUNCATE TABLE" else ""
    return "; ".join(str(change) for change in changes(old, new))


def _destination(old: TableVersion | None, new: TableVersion | None) -> str:
    """Describe how the next build brings the change to `current`."""
    if old is None or new is None or old == new or not new.published:
        return ""
    if (old.schema, old.name) != (new.schema, new.name):
        return " (current: a table under the new name)"
    return " (current: one schema change)" if step(old, new) is not None else " (current: replaced once)"


def _breaks(tried: Tried, relid: int) -> str | None:
    """Describe why UPDATE and DELETE are refused: no key identifies the rows of the published table."""
    verbs = " and ".join(v.upper() for v in ("update", "delete") if v in tried.after.publishes)
    reason = _blind(tried.after, relid)
    if not verbs or reason is None or _blind(tried.before, relid):
        return None
    return f"{verbs} on {tried.after.tables[relid].identifier} will fail at the source: it is published and {reason}"


def _blind(state: State, relid: int) -> str | None:
    """Return why the server cannot identify the rows of a published table; None if it can."""
    table = state.tables.get(relid)
    if table is None or not table.published:
        return None
    hidden = (c.name for c in table.columns if c.attnum in table.key_attnums and not c.published)
    if table.replica_identity != "f" and (name := next(hidden, None)):
        return f"the publication does not send column {name} of its replica identity"
    return state.unidentified.get(relid)
