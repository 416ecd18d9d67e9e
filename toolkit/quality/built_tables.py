"""Build the tables of a check to the LSN at which the source was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.values.errors import BuildFailed, TableDamaged
from toolkit.values.lsn import Lsn
from toolkit.values.names import lake_table

if TYPE_CHECKING:
    from toolkit.lake.applied import Applied, Commit
    from toolkit.lake.new_events import News
    from toolkit.lake.opened import Lake


def outdates(news: News, relid: int, build: Commit | None) -> bool:
    """Return whether a new build has anything to do for a table after this one."""
    return build is None or build.place is None or news.after(relid, build.place)


def moved(news: News, relid: int, made: Applied) -> str | None:
    """Say how another process has taken a table from the position of a check; None if it is there.

    A lease is lost with the session that holds it, so another runner may drain and build during a check.
    """
    if not made.exists:
        return None
    place = None if made.build is None else made.build.place
    if place is not None and place[0] > news.end[0]:
        return "it was built to a later LSN while the check was taken, by another process"
    if outdates(news, relid, made.build):
        return "it was put back to an earlier LSN while the check was taken, by another process"
    return None


class Build(Protocol):
    """The type of `toolkit.build.dbt_run.build`, for all tables or the lake names in `select`."""

    def __call__(self, *, select: Sequence[str] | None = None) -> Any:
        """Build all tables, or those in `select`."""


@dataclass(frozen=True, slots=True)
class BuiltTables:
    """The tables of a check after its build, by relid."""

    lsn: Lsn  # the ledger's position
    batch_id: int  # the ledger's last batch: another runner may commit later ones during the check
    news: News  # what the log has since the older tables were built
    older: Mapping[int, Applied]  # commits of the tables that nothing outdates, which were not built again
    failed: Mapping[int, str]  # why `current` or `history` of a table could not be built


def build_tables(lake: Lake, wanted: set[int], build: Build) -> BuiltTables:
    """Build the tables that have new events to the ledger's position; all tables if none is named in `wanted`.

    Raises:
        BuildFailed: more failed than the build of single tables.
    """
    from toolkit.lake import reads
    from toolkit.lake.applied import Applied
    from toolkit.lake.new_events import news
    from toolkit.rawlog.states import live_tables, table_states

    ledger = lake.reread()
    last = ledger.last()
    assert last is not None
    able = {s.relid for s in table_states(ledger) if s.comparable}
    live = [t for t in live_tables(ledger) if t.relid in able]
    asked = [t for t in live if not wanted or t.relid in wanted]
    made: dict[int, Applied] = {}
    builds: list[tuple[int, Commit | None]] = []
    layers = (lake.access.names.current, lake.access.names.history)
    names = [f"{layer}.{lake_table(table.schema, table.name)}" for table in asked for layer in layers]
    read = reads.each_metadata(lake.access, names)
    for table, current, history in zip(asked, read, read, strict=True):
        if isinstance(current, TableDamaged) or isinstance(history, TableDamaged):
            builds.append((table.relid, None))  # its build says what is damaged
            continue
        made[table.relid] = Applied.of(current)
        # A check compares `current` only. A table of which `history` lacks an event is not proven either. Nor is one of
        # which another program has changed it: a build makes it again.
        later = Applied.of(history)
        as_built = None if later.written or later.altered else later.build
        builds += [(table.relid, made[table.relid].build), (table.relid, as_built)]
    since = news(lake.spark, ledger, {build.place for _, build in builds if build is not None and build.place})
    outdated = {relid for relid, build in builds if outdates(since, relid, build)}
    late = [lake_table(t.schema, t.name) for t in asked if t.relid in outdated]
    failed: dict[int, str] = {}
    if late:
        try:
            # A build of all tables also makes the views over the log and the states, which a first build needs.
            build(select=late if len(late) < len(live) else None)
        except BuildFailed as error:
            if error.result is None:
                raise
            reasons = {name.partition(".")[2]: reason for name, reason in error.result.failed.items()}
            aliases = {t.relid: lake_table(t.schema, t.name) for t in asked}
            failed = {relid: reasons[alias] for relid, alias in aliases.items() if alias in reasons}
    older = {relid: made[relid] for relid in made.keys() - outdated}
    return BuiltTables(Lsn(last.complete_to), last.batch_id, since, older, failed)
