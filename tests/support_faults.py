"""Faults of every kind that parity must find, planted in a table of `current`, each with what the check must say.

All tables have the columns of `COLUMNS`. `id` distinguishes rows for the tests; only some tables have it as their key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.quality.report import TableCheck

COLUMNS = "id bigint, name text, amount numeric(12,2), note text, body text, code char(6), at timestamptz"
#: `note` is NULL for even ids and '' for those divisible by 3 else; `at` is infinite for ids divisible by 10, which no
#: Spark type carries.
_ROWS = (
    "select i, 'name ' || i, i * 1.25, case when i % 2 = 0 then null when i % 3 = 0 then '' else 'n' || i end,"
    " {body}, 'c' || i % 9,"
    " case when i % 10 = 0 then 'infinity' else '2026-01-01'::timestamptz + i * interval '1.000001 s' end"
    " from generate_series({first}, {last}) i"
)
#: `body` is long enough to be TOASTed.
ROWS = _ROWS.replace("{body}", "(select string_agg(md5((i * 1000 + k)::text), '') from generate_series(1, 90) k)")
#: For millions of rows: a long `body` would fill the disk.
LARGE_ROWS = _ROWS.replace("{body}", "md5(i::text) || md5((-i)::text)")
NAMES = ("id", "name", "amount", "note", "body", "code", "at")


@dataclass(frozen=True)
class Fault:
    """What the check must say: class and columns by id. `removed` and `added` rows name no columns."""

    name: str
    rows: dict[int, tuple[str, frozenset[str]]]


def _update(spark: SparkSession, table: str, name: str, cases: dict[int, str], column: str) -> Fault:
    whens = " ".join(f"WHEN {i} THEN {value}" for i, value in cases.items())
    spark.sql(f"UPDATE {table} SET {column} = CASE id {whens} END WHERE id IN ({', '.join(map(str, cases))})")
    return Fault(name, {i: ("modified", frozenset([column])) for i in cases})


def drop(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """A row is gone."""
    one = next(ids)
    spark.sql(f"DELETE FROM {table} WHERE id = {one}")
    return Fault("drop", {one: ("removed", frozenset())})


def duplicate(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """A row stands there twice."""
    one = next(ids)
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE id = {one}")
    return Fault("duplicate", {one: ("added", frozenset())})


def one_character(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """One character of one cell is another."""
    one = next(ids)
    return _update(spark, table, "one character", {one: f"'nAme {one}'"}, "name")


def smallest_number(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """A number is off by its last digit."""
    one = next(ids)
    return _update(spark, table, "smallest number", {one: f"{one * 1.25 + 0.01:.2f}BD"}, "amount")


def microsecond(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """A time is off by a microsecond."""
    one = next(i for i in ids if i % 10)
    return _update(spark, table, "microsecond", {one: "timestampadd(MICROSECOND, 1, at)"}, "at")


def swapped_values(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """Two rows have each other's value: every sum over the column stays the same."""
    one, two = next(ids), next(ids)
    return _update(spark, table, "swapped values", {one: f"'name {two}'", two: f"'name {one}'"}, "name")


def swapped_keys(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """Two rows have each other's key: every row's other cells stay together."""
    one, two = next(ids), next(ids)
    spark.sql(f"UPDATE {table} SET id = CASE id WHEN {one} THEN {two}L ELSE {one}L END WHERE id IN ({one}, {two})")
    return Fault("swapped keys", {i: ("modified", frozenset(["name", "amount"])) for i in (one, two)})


def empty_for_null(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """'' where there was NULL."""
    one = next(i for i in ids if i % 2 == 0)
    return _update(spark, table, "'' for NULL", {one: "''"}, "note")


def null_for_empty(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """NULL where there was ''."""
    one = next(i for i in ids if i % 2 == 1 and i % 3 == 0)
    return _update(spark, table, "NULL for ''", {one: "cast(NULL AS string)"}, "note")


def trailing_blank(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """A blank more at the end."""
    one = next(ids)
    return _update(spark, table, "trailing blank", {one: f"'name {one} '"}, "name")


def unpadded(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """char(n) without its blanks."""
    one = next(ids)
    return _update(spark, table, "unpadded", {one: "rtrim(code)"}, "code")


def stale_toast(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """A TOASTed value of another time."""
    one = next(ids)
    return _update(
        spark, table, "stale TOAST value", {one: "concat(substring(body, 33), substring(body, 1, 32))"}, "body"
    )


def invented(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """A value in place of the NULL whose text is kept beside it."""
    one = next(i for i in ids if i % 10 == 0)
    return _update(spark, table, "invented", {one: "timestamp'2026-01-01 00:00:00Z'"}, "at")


def doubled_batch(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """The rows of a batch were applied twice."""
    some = [next(ids) for _ in range(3)]
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE id IN ({', '.join(map(str, some))})")
    return Fault("doubled batch", {i: ("added", frozenset()) for i in some})


def lost_batch(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """The rows that a batch inserted are not there."""
    some = [next(ids) for _ in range(3)]
    spark.sql(f"DELETE FROM {table} WHERE id IN ({', '.join(map(str, some))})")
    return Fault("lost batch", {i: ("removed", frozenset()) for i in some})


def resurrected_delete(spark: SparkSession, table: str, ids: Iterator[int]) -> Fault:
    """A row that the source deleted is back, under its old key."""
    one = next(ids)
    spark.sql(
        f"INSERT INTO {table} SELECT {-one}L, name, amount, note, body, code, at, _cdc_from_lsn, _cdc_text"
        f" FROM {table} WHERE id = {one}"
    )
    return Fault("resurrected delete", {-one: ("added", frozenset())})


#: Each takes ids off the iterator and alters only their rows, so that many faults fit into one table.
FAULTS: tuple[Callable[[SparkSession, str, Iterator[int]], Fault], ...] = (
    drop, duplicate, one_character, smallest_number, microsecond, swapped_values, swapped_keys, empty_for_null,
    null_for_empty, trailing_blank, unpadded, stale_toast, invented, doubled_batch, lost_batch,
    resurrected_delete,
)  # fmt: skip


def missed(found: TableCheck, faults: list[Fault], *, keyed: bool) -> list[str]:
    """What the check says otherwise than it must; empty when every fault is found and nothing else is."""
    wanted = {i: reported for fault in faults for i, reported in fault.rows.items()}
    if keyed:
        samples = {int(dict(s.key)["id"] or 0): (s.kind, {d.column for d in s.differences}) for s in found.samples}
        wrong = [
            f"{i}: wanted {wanted.get(i)}, found {samples.get(i)}"
            for i in sorted(wanted.keys() | samples.keys())
            if i not in wanted
            or i not in samples
            or samples[i][0] != wanted[i][0]
            or not wanted[i][1] <= samples[i][1]
            or (len(wanted[i][1]) == 1 and wanted[i][1] != samples[i][1])
        ]
    else:
        shown: Counter[tuple[str, int]] = Counter((s.kind, int(dict(s.key)["id"] or 0)) for s in found.samples)
        expected: Counter[tuple[str, int]] = Counter()
        for i, (kind, _) in wanted.items():
            expected.update([("removed", i), ("added", i)] if kind == "modified" else [(kind, i)])
        wrong = [f"wanted {expected - shown}, found {shown - expected}"] if shown != expected else []
    counts = Counter(kind for kind, _ in wanted.values())
    if not keyed:
        n = counts.pop("modified", 0)
        counts.update({"added": n, "removed": n})
    reported = {"modified": found.modified, "added": found.added, "removed": found.removed}
    if reported != {kind: counts[kind] for kind in reported}:
        wrong.append(f"wanted {dict(counts)}, counted {reported}")
    return wrong
