"""Find rows of `current` whose referenced row is missing, by the foreign keys of the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.lake.row_lines import Side, current_fields

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.values.table import Column, ForeignKey

#: Types whose equal values have equal texts, within one type or between two of them.
_ALIKE = (
    {"smallint", "integer", "bigint"},
    {"text", "character varying"},
    {"timestamp with time zone"},
    {"timestamp without time zone"},
    *({name} for name in ("uuid", "date", "boolean", "bytea")),
)


def uncounted_reason(key: ForeignKey, child: Side, parent: Side) -> str | None:
    """Return why the rows of both tables cannot show whether the key holds; None if they can."""
    if key.exempt is not None:
        return key.exempt
    if parent.plan.table.row_filter is not None:
        return f"of {parent.plan.table.identifier} only the rows of its filter are here"
    for one, other in zip(key.columns, key.referenced, strict=True):
        pair = [next((c for c in s.plan.columns if c.attnum == n), None) for s, n in ((child, one), (parent, other))]
        if pair[0] is None or pair[1] is None:
            return "a column of it is not published"
        if not _comparable(pair[0], pair[1]):
            return f"equal values of {pair[0].type} and {pair[1].type} may have other texts"
    return None


def orphans(
    spark: SparkSession, key: ForeignKey, child: Side, parent: Side, *, samples: int
) -> tuple[int, tuple[tuple[str, ...], ...]]:
    """Count the rows whose referenced row is missing, and return some of the referenced values. This takes one join."""
    select = []
    for side, attnums in ((child, key.columns), (parent, key.referenced)):
        texts = dict(zip((c.attnum for c in side.plan.columns), current_fields(side.plan), strict=True))
        cells = ", ".join(f"{texts[attnum]} AS k{n}" for n, attnum in enumerate(attnums))
        select.append(f"SELECT {cells} FROM {side.relation}")
    names = [f"k{n}" for n in range(len(key.columns))]
    # A row with a NULL in the key references no row.
    rows = spark.sql(
        f"SELECT {', '.join(names)}, sum(count(*)) OVER () FROM ({select[0]}) AS c LEFT ANTI JOIN ({select[1]}) AS p"
        f" USING ({', '.join(names)}) WHERE {' AND '.join(f'{name} IS NOT NULL' for name in names)}"
        f" GROUP BY {', '.join(names)} ORDER BY {', '.join(names)} LIMIT {max(1, samples)}"
    ).collect()
    return (int(rows[0][-1]) if rows else 0), tuple(tuple(row[:-1]) for row in rows)


def _comparable(one: Column, other: Column) -> bool:
    types = [c.base for c in (one, other)]
    if types[0] == types[1] and (one.type_kind == "e" or types[0].startswith(("numeric(", "character(", "timestamp("))):
        return True
    plain = {name.partition("(")[0] if name.startswith("character varying") else name for name in types}
    return any(plain <= alike for alike in _ALIKE)
