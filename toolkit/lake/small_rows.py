"""Read rows of a small table of `current` or `history` as PostgreSQL prints them, without a JVM.

Only types with one plain text for each value are printed here. Spark prints all others. It also reads large tables, and
those with deletion vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from toolkit.lake import direct_scan, reads, storage
from toolkit.lake.direct_scan import Unusual
from toolkit.lake.row_versions import FROM, OF_VERSION, as_text
from toolkit.values.errors import LakeError
from toolkit.values.lake_types import kind
from toolkit.values.names import lake_columns

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess
    from toolkit.values.row_line import Comparison

#: The column with the texts that no typed value stands for.
_TEXTS = "_cdc_text"
#: The largest table, by its files and its rows.
_BYTES, _ROWS = 32 << 20, 200_000


def read(
    access: LakeAccess, relation: str, plan: Comparison, key: Mapping[str, str] | None, limit: int | None
) -> list[dict[str, str | None]] | None:
    """Read the compared columns of the rows that have these texts; None if Spark must read them.

    With a key, give every version with its columns `OF_VERSION`, oldest first.

    Raises:
        LakeError: a file of the table cannot be read.
    """
    metadata = reads.metadata(access, relation)
    summary = (reads.current_snapshot(metadata) or {}).get("summary") or {}
    size, rows = (int(summary.get(name, _BYTES + _ROWS)) for name in ("total-files-size", "total-records"))
    if metadata is None or size > _BYTES or rows > _ROWS:
        return None
    lake = lake_columns([(c.attnum, c.name) for c in plan.table.columns])
    names = {c.name: lake[c.attnum] for c in plan.columns}
    prints = {c.name: _PRINTS.get(kind(c)) for c in plan.columns}
    added = () if key is None else OF_VERSION
    try:
        if None in prints.values():
            raise Unusual
        found = direct_scan.read(
            metadata, None, list(dict.fromkeys([*names.values(), *added, _TEXTS])), (), storage.file_properties(access)
        )
        texts = _texts(found.column(_TEXTS).to_pylist())
        columns = {
            name: _printed(direct_scan.values_of(found.column(names[name])), print_ or str, names[name], texts)
            for name, print_ in prints.items()
        }
        chosen = [n for n in range(found.num_rows) if all(columns[c][n] == text for c, text in (key or {}).items())]
        more = {name: found.column(name).to_pylist() for name in added}
    except Unusual:
        return None
    except (OSError, ValueError) as error:
        raise LakeError(f"table {relation}: a file of it cannot be read: {error}; run `cdc doctor`") from None
    if added:
        chosen.sort(key=lambda n: more[FROM][n])
    return [
        {name: column[n] for name, column in columns.items()}
        | {name: as_text(values[n]) for name, values in more.items()}
        for n in chosen[:limit]
    ]


def _texts(column: Sequence[Any]) -> dict[int, dict[str, str]]:
    """Return the texts of values that their type cannot hold, by row and column."""
    return {n: dict(pairs) for n, pairs in enumerate(column) if pairs is not None}


def _printed(
    values: Sequence[Any], print_: Callable[[Any], str], lake_name: str, texts: Mapping[int, Mapping[str, str]]
) -> list[str | None]:
    found = [None if value is None else print_(value) for value in values]
    if print_ is not _same:
        for row, kept in texts.items():
            if lake_name in kept:
                if found[row] is not None:
                    raise Unusual  # a text beside a typed value is a fault, which Spark's text shows
                found[row] = kept[lake_name]
    return found


def _same(value: str) -> str:
    return value


def _moment(value: datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(" ", "microseconds" if value.microsecond else "seconds")
    return text.rstrip("0") if value.microsecond else text


#: The text of a value, by the kind of its column in the lake.
_PRINTS: Mapping[str, Callable[[Any], str]] = {
    "string": _same,
    "bool": lambda value: "t" if value else "f",
    "int": str,
    "bigint": str,
    "decimal": lambda value: format(value, "f"),
    "timestamp": _moment,
    "timestamptz": lambda value: f"{_moment(value)}+00",
}
