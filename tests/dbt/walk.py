"""Random but valid life of one table, step by step, for the oracle tests."""

from __future__ import annotations

import random
from typing import Any

from tests.dbt.scenario import Source, Table, column

BIG = "B" * 40


def keyed_table(relid: int, *, composite: bool = False, toasted_key: bool = False) -> Table:
    columns = [
        column(1, "id", "text" if toasted_key else "integer", not_null=True),
        column(2, "Part", "text", not_null=True),
        column(3, "big"),
        column(4, "n", "numeric(20,8)"),
        column(5, "at", "timestamp with time zone"),
    ]
    return Table(relid, f"t{relid}", columns, [2, 1] if composite else [1])


def bag_table(relid: int) -> Table:
    return Table(
        relid, f"t{relid}", [column(1, "a", "integer"), column(2, "b"), column(3, "c", "boolean")], [], identity="f"
    )


class Walk:
    """Drives one table of a source."""

    def __init__(
        self, source: Source, table: Table, rng: random.Random, *, schema: bool = True, toasted_key: bool = False
    ) -> None:
        self.source, self.table, self.rng = source, table, rng
        self.schema = schema
        self.toasted_key = toasted_key
        self.number = 0

    def value(self, attnum: int) -> str | None:
        rng = self.rng
        kind = next(c["type"] for c in self.table.columns if c["attnum"] == attnum)
        if self.table.keyed and attnum in self.table.key:
            return f"{rng.choice('kK')}{rng.randint(1, 8)}" if kind == "text" else str(rng.randint(1, 8))
        if rng.random() < 0.2:
            return None
        if kind == "integer":
            return str(rng.randint(-2, 2))
        if kind == "boolean":
            return rng.choice("tf")
        if kind.startswith("numeric"):
            return rng.choice(["0.00000000", "-0.00000001", "123456789012.12345678", "NaN"])
        if kind.startswith("timestamp"):
            return rng.choice(
                ["2026-01-01 00:00:00+00", "infinity", "0044-03-15 00:00:00+00 BC", "1969-12-31 23:59:59.999999+00"]
            )
        if not self.table.keyed:
            return rng.choice(["x", "", "y"])
        return BIG + str(rng.randint(0, 99)) if attnum == 3 else rng.choice(["", "x", "it's", "${y}\\n"])

    def key_of(self, row: dict[int, str | None]) -> tuple[str | None, ...]:
        return tuple(row.get(k) for k in self.table.key)

    def taken(self) -> set[tuple[str | None, ...]]:
        return {self.key_of(row) for row in self.table.rows}

    def change(self) -> None:
        table, rng, source = self.table, self.rng, self.source
        attnums = [c["attnum"] for c in table.columns]
        choice = rng.random()
        if choice < 0.35 or not table.rows:
            row = {a: self.value(a) for a in attnums}
            if not table.keyed or self.key_of(row) not in self.taken():
                source.insert(table, row)
        elif choice < 0.55:
            source.delete(table, rng.choice(table.rows))
        elif choice < 0.57:
            source.truncate(table)
        else:
            row = rng.choice(table.rows)
            values: dict[int, str | None] = {
                a: self.value(a) for a in attnums if rng.random() < 0.5 and a not in table.key
            }
            if table.keyed and rng.random() < 0.4:
                moved = {k: self.value(k) for k in table.key}
                if self.key_of(row | moved) not in self.taken():
                    values |= moved
            unchanged = [
                a for a in attnums
                if a not in values and row.get(a) is not None and len(row[a] or "") > 20 and rng.random() < 0.8
            ]  # fmt: skip
            if self.toasted_key and rng.random() < 0.5:
                unchanged += [k for k in table.key if k not in values]
            source.update(table, row, values, sorted(unchanged))

    def alter(self) -> None:
        rng, table = self.rng, self.table
        top = max([c["attnum"] for c in table.columns] + [c for c in getattr(self, "dropped", [])])
        if rng.random() < 0.6:
            missing: Any = rng.choice([None, "dflt'", ""])
            name = rng.choice(["extra", "Extra", "_pos", f"c{top + 1}"])
            if name in [c["name"] for c in table.columns]:
                name += str(top)
            self.source.add_column(table, column(top + 1, name, has_missing=missing is not None, missing=missing))
        else:
            droppable = [c["attnum"] for c in table.columns if c["attnum"] not in table.key and c["attnum"] != 1]
            if len(droppable) > 1:
                victim = rng.choice(droppable)
                self.dropped = [*getattr(self, "dropped", []), victim]
                self.source.drop_column(table, victim)

    def step(self) -> None:
        """One transaction."""
        if self.rng.random() < 0.03:
            self.source.baseline(self.table)
            return
        self.source.begin()
        for _ in range(self.rng.randint(1, 4)):
            self.change()
        if self.schema and self.rng.random() < 0.06:
            self.alter()
            self.change()
        self.source.commit()
