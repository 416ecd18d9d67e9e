"""The plan of a table is what its events say, in whatever order they were committed."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.dbt.scenario import Source, Table, column
from toolkit.rawlog import order
from toolkit.rawlog.memory import MemoryReading
from toolkit.rawlog.plan import Layer, TablePlan, labels_at, plans
from toolkit.rawlog.states import Doubt
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn

Planned = Callable[..., dict[Layer, TablePlan]]
RELID = 300


def reading(source: Source, root: Path) -> MemoryReading:
    """The log of a source."""
    source.batch()
    events = [asdict(event) for batch in source.all_batches for event in batch]
    return MemoryReading(Config(root=root).capture_rules, 1, events)


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """Both plans of the table of a source, at its end or at an LSN."""

    def plan(source: Source, upto: int | None = None) -> dict[Layer, TablePlan]:
        found = plans(reading(source, tmp_path), Lsn(source.lsn if upto is None else upto))
        return {one.layer: one for one in found if one.relid == RELID}

    return plan


def a_table(**more: Any) -> Table:
    columns = [column(1, "id", "bigint"), column(2, "ID"), column(3, "v", has_missing=True, missing="7")]
    return Table(RELID, "t", columns, **({"key": [1]} | more))


def started(table: Table) -> Source:
    source = Source()
    source.baseline(table, first=True)
    return source


def in_a_transaction(source: Source, act: Callable[[], None]) -> int:
    """Run one transaction and give its commit LSN."""
    source.begin()
    act()
    source.commit()
    return source.commit_lsn


def test_a_table_that_was_never_copied_has_no_plan(planned: Planned) -> None:
    source, table = Source(), a_table()
    source.tables[RELID] = table
    in_a_transaction(source, lambda: source.schema(table))
    assert planned(source) == {}


def test_rows_are_folded_from_the_last_reset_and_their_history_from_the_first_copy(planned: Planned) -> None:
    """A truncate and a later copy of the whole table: sorting the events by kind would end at the truncate."""
    table = a_table()
    source = started(table)
    first = source.lsn - 8
    truncated = in_a_transaction(source, lambda: source.truncate(table))
    copied = source.lsn
    source.baseline(table)
    many = [in_a_transaction(source, lambda: source.truncate(table)) for _ in range(12)]
    made = planned(source)
    (current,) = made[Layer.CURRENT].segments
    (history,) = made[Layer.HISTORY].segments
    assert (current.low.commit, current.clears, current.high) == (many[-1], (), None)
    assert history.low.end == first
    assert [clear.commit for clear in history.clears] == [truncated, copied - 1, *many]
    assert [clear.end for clear in history.clears][1] == copied

    (current,) = planned(source, upto=many[0])[Layer.CURRENT].segments
    assert current.low.end == copied  # the truncate before it is older
    (current,) = planned(source, upto=copied - 1)[Layer.CURRENT].segments
    assert current.low.commit == truncated


def test_a_segment_ends_where_the_key_changes(planned: Planned) -> None:
    table = a_table()
    source = started(table)

    def new_key() -> None:
        table.key = [2, 1]
        source.schema(table)

    renamed = in_a_transaction(source, lambda: source.schema(table))
    changed = in_a_transaction(source, new_key)
    table.identity = "f"
    unkeyed = in_a_transaction(source, lambda: source.schema(table))
    for made in planned(source).values():
        assert [one.key for one in made.segments] == [(1,), (2, 1), ()]
        assert [one.low.commit for one in made.segments][1:] == [changed, unkeyed]
        assert [one.high and one.high.commit for one in made.segments] == [changed, unkeyed, None]
        assert renamed < changed
        assert [[cell.attnum for cell in one.cells] for one in made.segments] == [[1, 2, 3], [1, 2, 3], []]
        assert made.segments[0].cells[2].missing == "7"
        assert [c.lake for c in made.columns] == ["id", "ID_a2", "v"]


def test_a_dropped_table_has_a_history_that_ends_and_no_rows(planned: Planned) -> None:
    table = a_table()
    source = started(table)
    table.dropped = True
    dropped = in_a_transaction(source, lambda: source.schema(table))
    made = planned(source)
    assert (made[Layer.CURRENT].dropped, made[Layer.CURRENT].segments) == (True, ())
    assert [clear.commit for clear in made[Layer.HISTORY].segments[0].clears] == [dropped]
    assert not planned(source, upto=dropped)[Layer.CURRENT].dropped


def test_a_gap_is_in_doubt_until_a_copy_or_a_check(planned: Planned) -> None:
    table = a_table()
    source = started(table)
    in_a_transaction(source, lambda: source.gap(table))
    gap = source.end_lsn
    made = planned(source)
    assert [plan.doubts for plan in made.values()] == [(Doubt(gap, None, None, None),)] * 2
    assert made[Layer.CURRENT].incomplete and made[Layer.HISTORY].incomplete
    part = source.lsn
    source.part(table, [3])
    checked = source.lsn
    source.checked(table)
    assert planned(source)[Layer.HISTORY].doubts == (Doubt(gap, None, part, checked),)
    copied = source.lsn
    source.baseline(table)
    made = planned(source)
    assert made[Layer.HISTORY].doubts == (Doubt(gap, copied, part, checked),)
    assert not made[Layer.CURRENT].incomplete and made[Layer.HISTORY].incomplete


def test_rows_whose_key_is_not_published_have_no_key(planned: Planned) -> None:
    """All had the key NULL, so that of a copy, and of the rows after it, only the last one was left."""
    table = a_table()
    table.columns[0] |= {"published": False}
    source = started(table)
    assert [plan.segments[-1].key for plan in planned(source).values()] == [(), ()]
    for change in ({"published": True}, {"published": False, "generated": "s"}):
        table.columns = [table.columns[0] | change, *table.columns[1:]]
        in_a_transaction(source, lambda: source.schema(table))
        assert [plan.segments[-1].key for plan in planned(source).values()] == [(1,), (1,)]


def labels(*names: str, former: tuple[str, ...] = ()) -> dict[str, Any]:
    """A column of an enum: the first value has OID 70, the second 71; `former` are earlier names of the first."""
    given = [{"oid": 70 + n, "label": name} for n, name in enumerate(names)]
    return column(4, "mood", "mood", type_oid=99, type_kind="e", type_category="E", enum_labels=given) | {
        "former_labels": [{"oid": 70, "label": name} for name in former]
    }


def test_renamed_labels_replace_the_older_ones_since_each_copy(planned: Planned) -> None:
    table = a_table()
    table.columns.append(labels("sad", "ok"))
    source = started(table)
    first = source.lsn - 8

    def rename(to: str, *former: str) -> None:
        table.columns[-1] = labels(to, "ok", former=former)
        in_a_transaction(source, lambda: source.schema(table))

    rename("grey", "sad")
    second = source.lsn
    source.baseline(table, first=True)  # with a version of its own, which has no former names
    table.columns[-1] = labels("blue", "ok", former=("grey",))
    in_a_transaction(source, lambda: source.schema(table))
    eras = {layer: plan.columns[-1].relabel for layer, plan in planned(source).items()}
    assert [(era.since, dict(era.labels)) for era in eras[Layer.CURRENT]] == [(second, {"grey": "blue"})]
    assert [(era.since, dict(era.labels)) for era in eras[Layer.HISTORY]] == [
        (second, {"grey": "blue"}),
        (first, {"sad": "blue", "grey": "blue"}),
    ]
    assert all(plan.columns[0].relabel == () for plan in planned(source).values())


def test_a_label_that_another_value_took_over_is_the_first_ones_before_the_copy(planned: Planned) -> None:
    """History as of the first copy showed the present name of the second value that had the label."""
    table = a_table()
    table.columns.append(labels("sad"))
    source = started(table)
    first = source.lsn - 8
    table.columns[-1] = labels("grey", "sad", former=("sad",))  # which makes the table stale
    in_a_transaction(source, lambda: source.schema(table))
    second = source.lsn
    source.baseline(table, first=True)
    table.columns[-1] = labels("grey", "blue") | {"former_labels": [{"oid": 71, "label": "sad"}]}
    in_a_transaction(source, lambda: source.schema(table))
    eras = planned(source)[Layer.HISTORY].columns[-1].relabel
    assert [(era.since, dict(era.labels)) for era in eras] == [(second, {"sad": "blue"}), (first, {"sad": "grey"})]


def test_labels_of_a_type_that_the_column_no_longer_has_are_replaced_before_the_copy(planned: Planned) -> None:
    """Once the column had another type, history showed of the enum what each row was written with."""
    table = a_table()
    table.columns.append(labels("sad", "ok"))
    source = started(table)
    first = source.lsn - 8
    table.columns[-1] = labels("grey", "ok", former=("sad",))
    in_a_transaction(source, lambda: source.schema(table))
    table.columns[-1] = column(4, "mood")  # which makes the table stale
    retyped = in_a_transaction(source, lambda: source.schema(table)) + 0x40
    second = source.lsn
    source.baseline(table, first=True)
    eras = planned(source)[Layer.HISTORY].columns[-1].relabel
    found = [(era.since, dict(era.labels)) for era in eras]
    assert found == [(second, {}), (retyped, {}), (first, {"sad": "grey"})]
    assert planned(source)[Layer.CURRENT].columns[-1].relabel == ()


def test_labels_at_an_lsn_have_the_names_of_that_time(tmp_path: Path) -> None:
    """`history` has the names of today, and rows at an LSN showed these."""
    table = a_table()
    table.columns.append(labels("sad", "ok"))
    source = started(table)
    points = [source.lsn]
    for label, former in (("grey", ("sad",)), ("blue", ("sad", "grey"))):
        table.columns[-1] = labels(label, "ok", former=former)
        in_a_transaction(source, lambda: source.schema(table))
        points.append(source.lsn)
    table.columns[-1] = column(4, "mood")
    source.baseline(table, first=True)
    source.batch()

    def shown(upto: int) -> list[dict[str, str]]:
        log = reading(source, tmp_path)
        built = [v.table for v in log.schema_versions() if v.commit_lsn < upto][-1]
        eras = (labels_at(log, built, Lsn(at)) for at in points)
        return [dict(era[4].labels) if 4 in era else {} for era in eras]

    assert shown(points[-1]) == [{"blue": "sad"}, {"blue": "grey"}, {}]
    assert shown(source.lsn) == [{"blue": "sad"}, {"blue": "grey"}, {}], "the copy has another type"


def test_a_missing_value_that_a_copy_has_lost_still_shows_in_older_rows(planned: Planned) -> None:
    """A rewrite drops it from the catalog. The history then showed NULL in rows that are older than the column."""
    table = a_table()
    source = started(table)
    table.columns[-1] = column(3, "v")
    source.baseline(table, first=True)
    table.key = [2]
    in_a_transaction(source, lambda: source.schema(table))
    history = planned(source)[Layer.HISTORY]
    assert [(c.attnum, c.missing) for c in history.columns] == [(1, None), (2, None), (3, "7")]
    assert [(c.has_missing, c.missing) for c in history.segments[0].cells] == [
        (False, None),
        (False, None),
        (True, "7"),
    ]


@pytest.mark.parametrize(
    ("name", "plain"),
    [("sad", True), ("très_gai", True), ("a-b", True), ("a,b", False), ("a b", False), ("", False), ("null", False),
     ("Empty", False), ("1", False), ('a"', False), ("{a}", False), ("a\\", False), ("=", False)],
)  # fmt: skip
def test_labels_inside_an_array_are_replaced_if_they_are_plain(planned: Planned, name: str, plain: bool) -> None:
    """A label that may be quoted, or be a word of the text, cannot be found in it: the table is stale instead."""

    def inside(first: str, former: tuple[str, ...] = ()) -> dict[str, Any]:
        made = labels(first, name, former=former)
        return made | {"enum_labels": None, "inner_labels": made["enum_labels"], "type_category": "A"}

    table = a_table()
    table.columns.append(inside("ok"))
    source = started(table)
    table.columns[-1] = inside("fine", ("ok",))
    in_a_transaction(source, lambda: source.schema(table))
    for plan in planned(source).values():
        eras = [(dict(era.labels), era.nested) for era in plan.columns[-1].relabel]
        assert eras == ([({"ok": "fine"}, True)] if plain else [])


def test_labels_inside_an_array_stay_replaced_before_one_that_may_be_quoted(planned: Planned) -> None:
    """After the copy that such a label needs, history as of an earlier LSN showed the labels of before their change."""

    def inside(*names: str, former: tuple[str, ...] = ()) -> dict[str, Any]:
        made = labels(*names, former=former)
        return made | {"enum_labels": None, "inner_labels": made["enum_labels"], "type_category": "A"}

    table = a_table()
    table.columns.append(inside("sad"))
    source = started(table)
    first = source.lsn - 8
    for later in (inside("grey", former=("sad",)), inside("grey", "on hold", former=("sad",))):
        table.columns[-1] = later
        in_a_transaction(source, lambda: source.schema(table))
    second = source.lsn
    table.columns[-1] = inside("grey", "on hold")
    source.baseline(table, first=True)
    eras = planned(source)[Layer.HISTORY].columns[-1].relabel
    assert [(era.since, dict(era.labels)) for era in eras] == [(second, {}), (first, {"sad": "grey"})]


def test_a_rendered_condition_is_the_order_of_positions() -> None:
    """The macros compare no positions: each condition in Spark SQL says what positions in Python say."""
    places = [order.Position(commit, ordinal) for commit in (10, 18) for ordinal in (order.BIRTH, 0, 5)]
    points = [order.Point(*at, end=at.commit_lsn + 1) for at in places]
    conn = sqlite3.connect(":memory:")

    def holds(condition: str, at: order.Position) -> bool:
        found = conn.execute(f"select {condition} from (select ? as commit_lsn, ? as ordinal)", at).fetchone()
        return bool(found[0])

    for at, low in itertools.product(places, places):
        assert holds(order.after_sql(low), at) == (at > low)
        for high in (None, *places):
            assert holds(order.between_sql(low, high), at) == (at > low and (high is None or at < high))
    later, earlier = order.first_after_sql(points), order.count_before_sql(points)
    for at in places:
        for point in points:
            for text, expected in ((later, point.position > at), (earlier, point.position <= at)):
                condition = text.split("t -> ")[1].split(")")[0]
                condition = condition.replace("t.c", str(point.commit)).replace("t.o", str(point.ordinal))
                assert holds(condition, at) == expected
    assert (order.first_after_sql([]), order.count_before_sql([])) == ("cast(null as bigint)", "0")
