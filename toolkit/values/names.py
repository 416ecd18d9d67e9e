"""Quote names for each engine, and derive the stable lake names of source tables and columns."""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import json
import re
import shlex
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

META_PREFIX = "_cdc_"
_RESERVED_COLUMNS = frozenset({"_deleted", "_pos", "_file", "_spec_id", "_partition", "_change_type", "_row_id"})
_LISTED = 10  # names that a message lists
_LAST_UPDATED = "_last_updated_sequence_number"


def quote_spark(name: str) -> str:
    """Quote one identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def quote_postgres(name: str) -> str:
    """Quote one identifier for PostgreSQL."""
    return '"' + name.replace('"', '""') + '"'


def qualified(schema: str, table: str) -> str:
    """Write `schema.table`, quoted only where PostgreSQL requires it."""
    plain = re.compile(r"[a-z_][a-z0-9_$]*")
    return ".".join(part if plain.fullmatch(part) else quote_postgres(part) for part in (schema, table))


def unquoted(name: str, *, fold: bool = False) -> str:
    """Return the name that an identifier in SQL has; `fold` makes one without quotes lower case, as PostgreSQL does."""
    if name.startswith('"'):
        return name[1:-1].replace('""', '"')
    return name.lower() if fold else name


def meant(given: str, known: Collection[str]) -> str | None:
    """Return the table that a user's name means, of those known, which are named as by `qualified`; None for none.

    A name is plain, or quoted as in SQL, even where PostgreSQL does not require it. No schema means `public`.
    """
    part = r'"(?:[^"]|"")+"|[^".]+'
    found = [(given[:at], given[at + 1 :]) for at, char in enumerate(given) if char == "."] or [("public", given)]
    if match := re.fullmatch(rf"(?:({part})\.)?({part})", given):
        found.insert(0, (unquoted(match[1] or "public"), unquoted(match[2])))
    return next((name for names in found if (name := qualified(*names)) in known), None)


def command(*words: str) -> str:
    """Write `cdc` and these words as shell input: a table name may contain anything, even a backtick."""
    return shlex.join(("cdc", *words))


def rebuild_command(name: str) -> str:
    """Write the command that makes `current` and `history` of a lake table again from the log."""
    return command("build", "--", "--full-refresh", "--select", f"current__{name}", f"history__{name}")


def visible(text: str, keep: str = "\t\n") -> str:
    """Show control characters as escapes. A name from the source must not control a terminal or reverse text."""
    return "".join(c if c in keep or unicodedata.category(c) not in ("Cc", "Cf") else ascii(c)[1:-1] for c in text)


def in_one_line(text: str) -> str:
    """Show all control characters as escapes. A name in a line of a report must not start another line."""
    return visible(text, keep="")


def _suffix(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def lake_table(schema: str, table: str) -> str:
    """Return the name of a source table in `current`, `history` and `published`.

    It has only lower case letters, digits and underscores. Any other name is transliterated and gets a hash of the
    original as a suffix, so that two source tables never share a lake name. An unchanged name has one `__`, between
    schema and table, and a name with a hash has more.
    """
    joined = f"{schema}__{table}"
    if re.fullmatch(r"[a-z0-9_]{1,200}", joined) and joined.split("__") == [schema, table]:
        return joined
    return re.sub(r"[^a-z0-9_]", "_", joined.lower())[:160] + "__" + _suffix(f"{schema}\0{table}")


def lake_columns(columns: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Return the lake name of each `(attnum, name)`.

    It is the source's own name, unless the lake reserves this name or two names differ only in case.
    """
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
            while made.lower() in used:  # never take a name that the table itself uses
                made += "_"
            used.add(made.lower())
            result[attnum] = made
    return result


def nearest(given: str, known: Iterable[str]) -> str:
    """Return the known name that is probably meant, or else a list of all. A table may lack its schema."""
    names = sorted(set(known))
    bare = {name: name.rpartition(".")[2] for name in names}  # two names are not alike because of one schema
    alike = difflib.get_close_matches(given.rpartition(".")[2], set(bare.values()), 3)
    close = sorted((name for name in names if bare[name] in alike), key=lambda name: alike.index(bare[name]))[:3]
    close = close or difflib.get_close_matches(given, names, 1, cutoff=0.85)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(names[:_LISTED]) or 'none'}{more}"


def selects(patterns: Iterable[str], exclude: Iterable[str], schema: str, table: str) -> bool:
    """Return whether `schema.table` matches one of the patterns and none of the excluded ones."""
    name = f"{schema}.{table}"
    return any(fnmatch.fnmatchcase(name, p) for p in patterns) and not any(
        fnmatch.fnmatchcase(name, p) for p in exclude
    )


def table_section(schema: str, table: str) -> str:
    """Write the header of the configuration's section of one table, as TOML; its pattern matches only that name."""
    return section_of(re.sub(r"[*?[]", r"[\g<0>]", f"{schema}.{table}"))


def section_of(pattern: str) -> str:
    """Write the header of the configuration's section of a pattern, as TOML. It quotes as JSON does, and DEL too."""
    return f"[table.{json.dumps(pattern, ensure_ascii=False)}]".replace("\x7f", r"\u007f")


def postgres_regex(pattern: str) -> str:
    """Return the regular expression with which PostgreSQL matches the names that a pattern matches."""
    made, at = "", 0
    while at < len(pattern):
        char, at = pattern[at], at + 1
        end = pattern.find("]", at + (2 if pattern[at : at + 1] == "!" else 1)) if char == "[" else -1
        if end > 0:
            negated = pattern[at] == "!"
            chars = re.sub(r"([\\\[\]^])", r"\\\1", pattern[at + negated : end])
            made, at = f"{made}[{'^' * negated}{chars}]", end + 1
        else:
            made += {"*": ".*", "?": "."}.get(char, re.sub(r"\W", r"\\\g<0>", char))
    return f"^(?:{made})$"


def renamed(columns: Sequence[tuple[int, str]]) -> Mapping[int, str]:
    """Return the lake names of the columns that have another name at the source, by attnum."""
    names = dict(columns)
    return {attnum: lake for attnum, lake in lake_columns(columns).items() if lake != names[attnum]}
