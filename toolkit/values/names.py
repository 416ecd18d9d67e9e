"""Names: quoting for each engine, and the stable lake names of source tables and columns."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

META_PREFIX = "_cdc_"
_RESERVED_COLUMNS = frozenset({"_deleted", "_pos", "_file", "_spec_id", "_partition", "_change_type", "_row_id"})
_LAST_UPDATED = "_last_updated_sequence_number"


def quote_spark(name: str) -> str:
    """Quote one identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def quote_postgres(name: str) -> str:
    """Quote one identifier for PostgreSQL."""
    return '"' + name.replace('"', '""') + '"'


def qualified(schema: str, table: str) -> str:
    """`schema.table` as people write it, quoted only where PostgreSQL would need it."""
    plain = re.compile(r"[a-z_][a-z0-9_$]*")
    return ".".join(part if plain.fullmatch(part) else quote_postgres(part) for part in (schema, table))


def _suffix(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def lake_table(schema: str, table: str) -> str:
    """Name of a source table in `current`, `history` and `published`: lower case letters, digits and underscores.

    Any other name is transliterated and gets a hash of the original, so that two source tables never share one: a name
    as it stands splits at `__` into schema and table, and one with a hash into more.
    """
    joined = f"{schema}__{table}"
    if re.fullmatch(r"[a-z0-9_]{1,200}", joined) and joined.split("__") == [schema, table]:
        return joined
    return re.sub(r"[^a-z0-9_]", "_", joined.lower())[:160] + "__" + _suffix(f"{schema}\0{table}")


def lake_columns(columns: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Lake name of each `(attnum, name)`: the source's own, unless the lake reserves it or two differ only in case."""
    folded: dict[str, int] = {}
    for _, name in columns:
        folded[name.lower()] = folded.get(name.lower(), 0) + 1
    used = set(folded)
    result = {}
    for attnum, name in columns:
        lower = name.lower()
        taken = lower.startswith(META_PREFIX) or lower in _RESERVED_COLUMNS or lower == _LAST_UPDATED
        clash = folded[lower] > 1 and name != lower
        result[attnum] = name
        if taken or clash:
            made = f"{'u' if taken else ''}{name}_a{attnum}"
            while made.lower() in used:  # the user's own names stay theirs
                made += "_"
            used.add(made.lower())
            result[attnum] = made
    return result


def selects(patterns: Iterable[str], exclude: Iterable[str], schema: str, table: str) -> bool:
    """Whether `schema.table` matches one of the globs and none of the excluded ones."""
    name = f"{schema}.{table}"
    return any(fnmatch.fnmatchcase(name, p) for p in patterns) and not any(
        fnmatch.fnmatchcase(name, p) for p in exclude
    )


def renamed(columns: Sequence[tuple[int, str]]) -> Mapping[int, str]:
    """Only the columns whose lake name differs from the source's."""
    names = dict(columns)
    return {attnum: lake for attnum, lake in lake_columns(columns).items() if lake != names[attnum]}
