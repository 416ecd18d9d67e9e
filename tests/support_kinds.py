"""The tables that a random life begins with, and `KINDS`, the ways to capture them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from toolkit.values.config import CheckConfig, Config, SnapshotConfig, SourceConfig, TableConfig
from toolkit.values.modes import Capture, Triggers

SCHEMA = """
create schema life;
create schema near;
create schema far;
create type life.mood as enum ('a', 'b', 'c');
create type life.pair as (x int, y text);
create table life.t1 (id int primary key, n numeric(8, 2), v text, m life.mood, big text);
create table life.t2 (a int, b text default 'd', primary key (b, a));
create table life.t3 (a int, v text);
alter table life.t3 replica identity full;
alter table life.t1 alter big set storage external;
create table life.p (id int, d int, v text, primary key (id, d)) partition by range (d);
create table life.p1 partition of life.p for values from (0) to (5);
create table life.p2 partition of life.p for values from (5) to (100);
create table life.h (id int primary key, n int, v text);
create table life.h1 (primary key (id)) inherits (life.h);
insert into life.t1 select i, i, 'v' || i, 'a', repeat(md5(i::text), 200) from generate_series(1, 9) as i;
insert into life.t2 select i, 'k' from generate_series(1, 5) as i;
insert into life.t3 values (1, 'x'), (1, 'x'), (2, null);
insert into life.p select i, i, 'p' from generate_series(1, 9) as i;
insert into life.h select i, i, 'h' from generate_series(1, 3) as i;
insert into life.h1 select i, i, 'h1' from generate_series(4, 6) as i;
"""
_PARTS = "life.t1 (id, n, v) where (id > 3), life.t2 (b, a) where (b <> 'k'), life.t3 where (a = 1)"


@dataclass(frozen=True)
class Kind:
    """How a life is captured. `more` follows SCHEMA; `parts`: its publication names tables, some of them in part."""

    more: str = ""
    parts: bool = False
    moves: bool = True  # tables go from one schema to another
    source: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, TableConfig] = field(default_factory=dict)

    @property
    def by_schema(self) -> bool:
        """Whether a table is captured for the schema that it is in."""
        return not self.parts and not self.logged

    @property
    def by_name(self) -> bool:
        """Whether the publication of the toolkit names tables, and of partitions their root only."""
        return "exclude" in self.source

    @property
    def by_roots(self) -> bool:
        """Whether rows of partitions are sent under their root."""
        return "publish_via_partition_root" in self.more

    @property
    def logged(self) -> bool:
        """Whether triggers alone capture, which a new table gets at the next drain."""
        return "capture" in self.source

    @property
    def by_ticks(self) -> bool:
        """Whether no slot is drained."""
        return self.source.get("change_log_drain") == "tick"

    @property
    def twice(self) -> bool:
        """Whether tables are captured by the slot and by triggers."""
        return any(table.capture == "both" for table in self.tables.values())

    def config(self, conninfo: str) -> Config:
        """The configuration of a toolkit that captures `conninfo` in this way."""
        source = SourceConfig(conninfo=conninfo, slot="cdc_life", **self.source)
        # One thread drives all sessions: what waits for a lock of theirs waits in vain.
        short = SnapshotConfig(workers=0, lock_seconds=0.05)
        return Config(source=source, table=self.tables, check=CheckConfig(cut_seconds=120.0), snapshot=short)


_OURS: dict[str, Any] = {"new_tables": "schemas", "tables": ("life.*", "near.*")}
_THEIRS: dict[str, Any] = {"publication": "theirs", "scope": "published"}
_LOGGED: dict[str, Any] = {"capture": "change_log", "tables": ("life.*", "near.*")}
_STATEMENT = {"life.t2": TableConfig(triggers=Triggers.STATEMENT), "life.t3": TableConfig(triggers=Triggers.STATEMENT)}
KINDS = {
    "plain": Kind(source=_OURS),
    # The publication names each table, and a new one joins it where it is made.
    "named": Kind(source=_OURS | {"new_tables": "publish", "exclude": ("life.left_out_*",)}),
    # Rows of partitions are sent under their root.
    "roots": Kind(
        "create publication theirs for tables in schema life, near with (publish_via_partition_root = true);",
        source=_THEIRS,
    ),
    # Row filters and column lists.
    "parts": Kind(
        f"create publication theirs for table {_PARTS}, life.p1 where (id < 4), life.p2;", parts=True, source=_THEIRS
    ),
    "parts_of_roots": Kind(
        f"create publication theirs for table {_PARTS}, life.p where (id > 2)"
        " with (publish_via_partition_root = true);",
        parts=True,
        source=_THEIRS,
    ),
    # The slot's rows count, and those of triggers are evidence.
    "both": Kind(source=_OURS | {"change_log_drain": "slot"}, tables={"*.*": TableConfig(capture=Capture.BOTH)}),
    "log": Kind(source=_LOGGED | {"change_log_drain": "slot"}, tables=_STATEMENT),
    "ticks": Kind(source=_LOGGED | {"change_log_drain": "tick"}, tables=_STATEMENT),
}

__all__ = ["KINDS", "SCHEMA", "Kind"]
