"""What the source renames or drops: its tables leave `current` and `history` when no view shows them any more."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.dbt.harness import Lake, rebuilt
from tests.dbt.scenario import Row, Source, Table, column
from tests.dbt.test_models import check_current, check_history
from tests.support_ledger import lake_of, ledger_of
from toolkit.build import retired
from toolkit.history import rows_at_lsn
from toolkit.lake import proofs, reads, storage
from toolkit.ops import status_report
from toolkit.values.errors import ConfigError
from toolkit.values.lsn import Lsn

pytestmark = [pytest.mark.dbt, pytest.mark.spark]


def table(relid: int, name: str) -> Table:
    """Two rows and a comment."""
    columns = [column(1, "id"), column(2, "v", comment=f"of {relid}")]
    return Table(relid, name, columns, [1], rows=[{1: "1", 2: f"{name} one"}, {1: "2", 2: f"{name} two"}])


def names(built: Lake) -> dict[str, set[str]]:
    return {layer: set(reads.tables(built.config.lake_access, layer)) for layer in ("current", "history")}


def publish(built: Lake, name: str, shown: str) -> None:
    """A view as a green check makes it; a deprecated one shows a table of another name."""
    built.spark.sql("create namespace if not exists published")
    proven = max(reads.tags(built.config.lake_access, f"current.{shown}").items())[1]
    query = proofs.shown_sql(built.config.lake_access, shown, proven)
    built.spark.sql(f"create or replace view published.{name} tblproperties ('cdc.relation' = '{shown}') as {query}")


def rename(source: Source, *pairs: tuple[Table, str]) -> None:
    for one, name in pairs:
        one.name = name
        source.schema(one)


@pytest.mark.wide
def test_a_renamed_table_leaves_when_no_view_reads_it(built: Lake) -> None:
    """`current` and `history` kept the old name for ever, as a table that no one builds and no one calls red."""
    source = Source()
    renamed, other = table(300, "t"), table(301, "u")
    for one in (renamed, other):
        source.baseline(one, first=True)
    built.append(source)
    built.build()
    publish(built, "public__t", "public__t")
    built.spark.sql("create table current.mine as select 1 as n")  # no build made it
    source.begin()
    rename(source, (renamed, "v"))
    source.update(renamed, renamed.rows[0], {2: "later"}, [])
    source.commit()
    built.append(source)
    built.build()
    shown = {row["v"] for row in built.spark.sql("select v from published.public__t").collect()}
    assert shown == {"t one", "t two"}
    assert names(built)["current"] == {"public__t", "public__u", "public__v", "mine"}

    publish(built, "public__t", "public__v")
    built.build()
    assert names(built) == {"current": {"public__u", "public__v", "mine"}, "history": {"public__u", "public__v"}}
    check_current(built, source, [renamed, other])
    check_history(built, source, renamed)
    assert status_report.dropped_tables(ledger_of(built.config)) == ()


@pytest.mark.embedded
def test_what_follows_must_stand_before_the_old_one_leaves(built: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    renamed, gone = table(300, "t"), table(301, "gone")
    for one in (renamed, gone):
        source.baseline(one, first=True)
    built.append(source)
    built.build()
    source.begin()
    rename(source, (renamed, "v"))
    gone.dropped = True
    source.schema(gone)
    source.commit()
    built.append(source)
    location = str((reads.metadata(built.config.lake_access, "current.public__gone") or {})["location"])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda path, **_: (_ for _ in ()).throw(PermissionError(1, "no", str(path))))
        # A table that the catalog does not know any more would keep its rows for ever, and no run would say so.
        refused = r"current\.public__gone: file:/\S+\.parquet is of a table to drop and cannot be removed: .*cdc build"
        left = retired.retire(built.config.lake_access, ledger_of(built.config))
    assert left.dropped == () and left.failed.keys() == {"current.public__gone"}
    assert re.match(refused, left.failed["current.public__gone"])
    assert built.spark.table("current.public__gone").count() == 2
    (lost,) = Path(location.removeprefix("file:")).rglob("snap-*.avro")
    lost.rename(lost.with_suffix(".away"))
    left = retired.retire(built.config.lake_access, ledger_of(built.config))
    damaged = rf"^current\.public__gone is to be dropped, and its files cannot be listed: .*{lost.name}; run DROP TABLE"
    assert left.dropped == () and re.match(damaged, left.failed["current.public__gone"])
    lost.with_suffix(".away").rename(lost)
    left = retired.retire(built.config.lake_access, ledger_of(built.config))
    assert left == retired.Retired(("current.public__gone",), {})
    assert list(storage.files_in(location, {})) == []
    assert names(built) == {"current": {"public__t"}, "history": {"public__t", "public__gone"}}
    (dropped,) = status_report.dropped_tables(ledger_of(built.config))
    assert (dropped.table, dropped.lsn, dropped.history) == ("public.gone", source.end_lsn, None)


@pytest.mark.wide
def test_a_cycle_of_names_leaves_every_name_in_use(built: Lake) -> None:
    source = Source()
    tables = [table(300 + n, name) for n, name in enumerate("abc")]
    for one in tables:
        source.baseline(one, first=True)
    built.append(source)
    built.build()
    source.begin()
    rename(source, (tables[0], "tmp"), *zip(tables[1:], "ab", strict=True), (tables[0], "c"))
    for one in tables:
        source.update(one, one.rows[0], {2: f"now of {one.name}"}, [])
    source.commit()
    built.append(source)
    built.build()
    assert names(built) == {layer: {f"public__{n}" for n in "abc"} for layer in ("current", "history")}
    check_current(built, source, tables)
    for one in tables:
        check_history(built, source, one)


def test_a_dropped_tables_history_ends_and_stays(built: Lake) -> None:
    """Its rows stood open in `history` for ever, until a table that was made under its name wrote over them all."""
    source = Source()
    first, bag, kept = table(300, "t"), table(301, "bag"), table(302, "kept")
    bag.key, bag.identity = [], "f"
    for one in (first, bag, kept):
        source.baseline(one, first=True)
    before = Lsn(source.lsn)
    built.append(source)
    built.build()
    source.begin()
    source.update(first, first.rows[0], {2: "last"}, [])
    source.insert(bag, {1: "3", 2: "last"})
    source.commit()
    last = Lsn(source.end_lsn)
    source.begin()
    source.insert(first, {1: "9", 2: "of the drop's own transaction"})
    for one in (first, bag):
        one.dropped = True
        source.schema(one)
    again = source.create(Table(400, "t", [column(1, "other")], [1]))
    source.insert(again, {1: "new"})
    source.commit()
    end = source.end_lsn
    built.append(source)
    built.build()
    assert names(built) == {
        "current": {"public__t", "public__kept"},
        "history": {"public__t", "public__kept", "public__t__dropped_g1_300", "public__bag__dropped_g1_301"},
    }
    check_current(built, source, [again, kept])
    for one, at in ((first, 300), (bag, 301)):
        relation = f"history.public__{one.name}__dropped_g1_{at}"
        found = built.spark.sql(f"select id, v, _cdc_from_lsn, _cdc_to_lsn from {relation}").collect()
        assert {row[3] is None for row in found} == {False}
        for lsn in (before, last, Lsn(end - 1)):
            have: Counter[Row] = Counter((r[0], r[1]) for r in found if r[2] <= lsn < r[3])
            want = source.at(one.relid, lsn)
            assert want is not None and have == want[0], (one.name, lsn)
        assert max(row[3] for row in found) == end
    ledger = ledger_of(built.config)
    assert [(d.table, d.history) for d in status_report.dropped_tables(ledger)] == [
        ("public.t", "history.public__t__dropped_g1_300"), ("public.bag", "history.public__bag__dropped_g1_301"),
    ]  # fmt: skip
    assert [r["v"] for r in rows_at_lsn.rows(lake_of(built.config), "bag", key={"id": "3"})] == ["last"]
    assert len(rows_at_lsn.rows(lake_of(built.config), "bag", as_of=last)) == 3
    with pytest.raises(ConfigError, match=r"public\.bag: it was dropped at"):
        rows_at_lsn.rows(lake_of(built.config), "bag")

    made = reads.snapshot_id(built.config.lake_access, "history.public__t__dropped_g1_300")
    source.begin()
    source.insert(again, {1: "newer"})
    again.dropped = True
    source.schema(again)
    source.commit()
    built.append(source)
    built.build()
    assert names(built)["history"] == {"public__kept", *(f"public__t__dropped_g1_{n}" for n in (300, 400)),
                                       "public__bag__dropped_g1_301"}  # fmt: skip
    assert reads.snapshot_id(built.config.lake_access, "history.public__t__dropped_g1_300") == made
    assert not rebuilt(built.build())


def test_a_table_that_a_user_has_renamed_in_current_stays(built: Lake) -> None:
    """The next build made the table again, and dropped the renamed one with its files."""
    source, one = Source(), table(300, "t")
    source.baseline(one, first=True)
    built.append(source)
    built.build()
    for layer in ("current", "history"):
        built.spark.sql(f"alter table {layer}.public__t rename to {layer}.kept_by_me")
    built.build()
    assert names(built) == {layer: {"public__t", "kept_by_me"} for layer in ("current", "history")}
    source.begin()
    rename(source, (one, "v"))
    source.update(one, one.rows[0], {2: "later"}, [])
    source.commit()
    built.append(source)
    built.build()
    assert names(built) == {layer: {"public__v", "kept_by_me"} for layer in ("current", "history")}
    assert {row["v"] for row in built.spark.sql("select v from current.kept_by_me").collect()} == {"t one", "t two"}
    check_current(built, source, [one])
    check_history(built, source, one)
