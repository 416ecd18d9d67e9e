"""A lake that follows a database: what dbt built, now and as of an earlier look, is what SELECT showed."""

from __future__ import annotations

import re
import shutil
from collections import Counter

from tests import commands
from tests.support_ledger import ledger_of
from tests.support_log import Shown, shown
from toolkit.lake import session
from toolkit.lake.row_lines import current_fields
from toolkit.rawlog.states import states_at, table_states
from toolkit.source import connection
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn
from toolkit.values.names import lake_table
from toolkit.values.resources import ROOT
from toolkit.values.row_line import comparison
from toolkit.values.table import TableVersion


class Follower:
    """A lake with a dbt project of its own. `points` are what SELECT showed at each look, by relid."""

    def __init__(self, config: Config) -> None:
        project = config.dbt_project.folder
        shutil.copytree(ROOT / "dbt_project", project, ignore=shutil.ignore_patterns("target", "logs"))
        self.config = config
        self.points: dict[Lsn, dict[int, Shown]] = {}
        self.counts: Counter[str] = Counter()

    def look(self) -> list[str]:
        """Drain and build while no session writes, and say how the tables that can be known differ."""
        commands.drain(self.config)
        ledger = ledger_of(self.config)
        last = ledger.last()
        assert last is not None
        at = Lsn(last.complete_to)
        with connection.connect(self.config.source) as conn:
            versions = [v.table for v in ledger.latest_versions().values()]
            # Texts that change with the objects they name are stale, but comparable.
            live = [t for t in versions if t.published and not t.dropped and not t.borrowing]
            self.points[at] = {table.relid: shown(conn, table) for table in live}
        commands.build(self.config)
        known = {s.relid for s in table_states(ledger) if s.comparable}
        self.counts["stale"] += sum(t.relid not in known for t in live)
        return self.compare("current", at, {t.relid: t for t in live if t.relid in known})

    def again(self, at: Lsn) -> list[str]:
        """Build as of an earlier look, and say how its tables differ from what SELECT showed then."""
        result = commands.build(self.config, as_of=at)
        known = self._known(at)
        self.counts["stale"] += len(self.points[at].keys() - known.keys())
        return self.compare(result.schema, at, known)

    def remembered(self) -> list[str]:
        """Say how `history`, valid at each earlier look, differs from what SELECT showed then.

        A table is compared if its columns are still those of the look, since `history` has the columns of today.
        """
        ledger, found = ledger_of(self.config), list[str]()
        today = {s.relid: s for s in table_states(ledger) if s.comparable}
        now = {v.table.relid: v.table for v in ledger.latest_versions().values()}
        for at in sorted(self.points):
            then = self._known(at)
            same = {r: now[r] for r, table in then.items() if r in today and table.columns == now[r].columns}
            self.counts["remembered"] += len(self.points[at].keys() & same.keys())
            valid = f"_cdc_from_lsn <= {int(at)} AND (_cdc_to_lsn IS NULL OR {int(at)} < _cdc_to_lsn)"
            found += self.compare("history", at, same, where=valid)
        return found

    def compare(self, schema: str, at: Lsn, known: dict[int, TableVersion], where: str = "true") -> list[str]:
        """Say how the tables of a schema differ from what SELECT showed at a look."""
        found = []
        for relid, truth in self.points[at].items():
            if relid not in known:
                continue
            table = known[relid]
            built = self._built(schema, table, where)
            if built != truth:
                many, few = built[1] - truth[1], truth[1] - built[1]
                found.append(
                    f"{schema}, {table.identifier} at {at}: {many} too many, {few} missing; {built[0]}, {truth[0]}"
                )
            self.counts["exact"] += 1
        return found

    def plant(self) -> None:
        """Planted fault: the comparison must see that a table lacks its rows, if one has any."""
        at = max(self.points)
        known = {s.relid for s in table_states(ledger_of(self.config)) if s.comparable}
        live = {v.table.relid: v.table for v in ledger_of(self.config).latest_versions().values()}
        emptied = next((relid for relid in known if relid in self.points[at] and self.points[at][relid][1]), None)
        if emptied is None:
            return
        self.counts["planted"] += 1
        table = live[emptied]
        for schema in ("current", "history"):
            name = f"{schema}.{lake_table(table.schema, table.name)}"
            session.own_session(self.config.lake_access).sql(f"DELETE FROM {name} WHERE true")
            (found,) = self.compare(schema, at, {emptied: table})
            assert re.match(f"{schema}, {re.escape(table.identifier)} at .* missing", found)

    def _known(self, at: Lsn) -> dict[int, TableVersion]:
        return {v.table.relid: v.table for v, state in states_at(ledger_of(self.config), at, {}) if state.state == "ok"}

    def _built(self, schema: str, table: TableVersion, where: str) -> Shown:
        """Read rows of a built table as PostgreSQL's texts."""
        plan = comparison(table, 1)
        relation = f"{schema}.{lake_table(table.schema, table.name)}"
        fields = ", ".join(f"{field} AS f{n}" for n, field in enumerate(current_fields(plan))) or "1 AS f0"
        rows = (
            session.own_session(self.config.lake_access).sql(f"SELECT {fields} FROM {relation} WHERE {where}").collect()
        )
        width = len(plan.columns)
        return tuple(c.attnum for c in plan.columns), Counter(tuple(row)[:width] for row in rows)


__all__ = ["Follower"]
