"""Named cases: identity that changes, names that repeat, gaps, faults planted by hand, dbt on its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import commands
from tests.dbt.harness import Lake
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_models import actions, check_current, check_history, expected
from tests.support_ledger import lake_of, ledger_of
from toolkit.history import rows_at_lsn
from toolkit.lake import plans, reads
from toolkit.lake.session import own_session
from toolkit.values.errors import BuildFailed, ConfigError, UnknownTable
from toolkit.values.lsn import Lsn

pytestmark = [pytest.mark.dbt, pytest.mark.spark]

_NEVER_PUT = r"failed for current\.public__t200, history\.public__t200; the first: .*removes a row that it never put"


def two_keys(relid: int) -> Table:
    table = Table(relid, f"t{relid}", [column(1, "a", "integer"), column(2, "b", "integer"), column(3, "v")], [1])
    table.rows = [{1: "1", 2: "10", 3: "x"}, {1: "2", 2: "20", 3: "y"}]
    return table


def test_cases(built: Lake) -> None:
    source = Source()
    switched, labels, repaired, stale, odd, gone, widened = (two_keys(n) for n in range(200, 207))
    labels.columns[2] |= {
        "type": "mood",
        "type_kind": "e",
        "enum_labels": [{"oid": 7, "label": "x"}, {"oid": 8, "label": "y"}],
    }
    odd.name = "Odd Näme"
    odd.columns = [column(1, "A", "integer"), column(2, "a", "integer"), column(3, "_cdc_from_lsn")]
    ticked, bag = two_keys(207), Table(208, "t208", [column(1, "a")], [], identity="f", rows=[{1: "old"}])
    partly = two_keys(209)
    tables = [switched, labels, repaired, stale, odd, gone, widened, ticked, bag, partly]
    for table in tables:
        source.baseline(table, first=True)

    # the primary key moves to another column, then to no key at all, each in mid-stream
    source.begin()
    source.update(switched, switched.rows[0], {2: "11"}, [3])
    switched.key = [2]
    source.schema(switched)
    source.update(switched, switched.rows[1], {1: "5", 3: "z"}, [])
    source.update(switched, switched.rows[0], {2: "12"}, [3])
    source.commit()
    source.begin()
    switched.identity = "f"
    source.schema(switched)
    source.insert(switched, dict(switched.rows[0]))
    source.delete(switched, switched.rows[1])
    source.commit()

    # to a column that is added by the same command: the images from before do not reach to it
    source.begin()
    source.insert(widened, {1: "3", 2: "30", 3: "w"})
    widened.key = [4, 1]
    source.add_column(widened, column(4, "tenant", "integer", has_missing=True, missing="7"))
    source.update(widened, widened.rows[0], {3: "z"}, [])
    source.update(widened, widened.rows[1], {4: "8"}, [3])
    source.delete(widened, widened.rows[2])
    source.commit()

    # a label is renamed: rows written before show the new one
    source.begin()
    labels.columns[2] = labels.columns[2] | {
        "enum_labels": [{"oid": 7, "label": "ecks"}, {"oid": 8, "label": "y"}],
        "former_labels": [{"oid": 7, "label": "x"}],
    }
    source.schema(labels)
    labels.rows[0][3] = "ecks"
    source.commit()

    for table in (repaired, stale, partly):
        source.begin()
        source.gap(table)
        source.commit()
    unverified_from = source.end_lsn
    repaired.rows[0][3] = "what the log never said"
    source.baseline(repaired)

    partly.rows[0][3] = "nor this"
    source.part(partly, [3])
    source.begin()
    source.update(partly, partly.rows[1], {3: "later"}, [])
    source.commit()

    # copied at a tick: the rows of that very tick are in the copy already, also those that it truncates
    source.tick()
    source.insert(bag, {1: "new"})
    source.baseline(bag)
    source.tick()
    source.insert(ticked, {1: "3", 2: "30", 3: "truncated with the others"})
    source.truncate(ticked)
    source.insert(ticked, {1: "4", 2: "40", 3: "there"})
    source.baseline(ticked)
    built.append(source)
    built.build()
    check_current(built, source, tables)
    for table in (switched, widened, ticked, bag):
        check_history(built, source, table)

    states = {
        row[0]: tuple(row)[1:]
        for row in built.spark.sql("select relid, state, reason, remedy from ops.tables").collect()
    }
    assert states[stale.relid] == ("stale", "test gap", "cdc repair public.t203")
    # Its rows are known since the copy; that the copy was enough only a check can say.
    assert (states[repaired.relid][0], states[repaired.relid][2]) == ("stale", "cdc check public.t202")
    assert states[partly.relid][0] == "stale"
    unverified = built.spark.sql(
        "select a, _cdc_doubtful, _cdc_to_lsn from history.public__t202 order by 1, 2"
    ).collect()
    assert [row[1] for row in unverified] == [False, True, False, True]
    assert unverified_from

    def doubts() -> list[tuple[int, bool]]:
        return [
            tuple(row)
            for row in built.spark.sql(
                "select a, _cdc_doubtful from history.public__t209 order by a, _cdc_from_lsn"
            ).collect()
        ]

    assert doubts() == [(1, True), (1, True), (2, True), (2, True), (2, True)]

    # planted by hand: a build leaves it for the check to find, a full refresh repairs it
    built.spark.sql("update current.public__t203 set v = 'planted' where a = 1")
    source.begin()
    source.insert(stale, {1: "3", 2: "30", 3: None})
    source.commit()
    built.append(source)
    assert actions(built.build(select=["current"]))["current.public__t203"] == "merge"
    assert built.rows("current.public__t203", stale.snapshot()) != expected(source, stale)
    built.build(select=["public__t203"], dbt_args=["--full-refresh"])
    assert built.rows("current.public__t203", stale.snapshot()) == expected(source, stale)

    # dropped, and made again under the same name: another table
    source.begin()
    gone.dropped = True
    source.schema(gone)
    again = Table(900, gone.name, [column(1, "other")], [1])
    source.create(again)
    source.insert(again, {1: "new"})
    source.commit()
    # and a repair that lands late, below the applied position
    source.checked(partly)
    built.append(source)
    built.build(select=["public__t205", "public__t209"])
    # What was there at the check is exact since the part was read; what had ended by then no one knows.
    assert doubts() == [(1, True), (1, False), (2, True), (2, True), (2, False)]
    assert built.rows("current.public__t205", again.snapshot()) == Counter({("new",): 1})

    # a table whose log cannot be right is refused by name, in one line
    source.begin()
    source._row(switched, "D", old_kind="O", old=["77", "77", "never"])
    source.commit()
    built.append(source)
    with pytest.raises(BuildFailed, match=_NEVER_PUT) as refused:
        built.build(select=["public__t200"])
    assert "\n" not in str(refused.value)
    with pytest.raises(UnknownTable):
        built.build(select=["public__nothing"])
    with pytest.raises(BuildFailed, match="not in the log yet"):
        built.build(as_of=Lsn(source.lsn + 1))


@pytest.mark.wide
def test_dbt_alone(built: Lake, tmp_path: Path) -> None:
    """`dbt build` as a process, with nothing but the profile: it builds the last batch that a command finished."""
    from toolkit.lake.session import stop_session

    source = Source()
    table = two_keys(300)
    source.baseline(table, first=True)
    built.append(source)
    commands.sync(built.config)
    assert not commands.sync(built.config).written
    plans.write(ledger_of(built.config))
    finished = expected(source, table)
    source.begin()
    source.insert(table, {1: "9", 2: "90", 3: "of a command that was killed"})
    source.commit()
    built.append(source)
    stop_session()

    def dbt(*arguments: str) -> subprocess.CompletedProcess[str]:
        project = built.config.dbt_project.folder
        dbt = Path(sys.executable).with_name("dbt")
        command: list[str | Path] = [dbt, "build", "--project-dir", project, "--profiles-dir", project]
        return subprocess.run(
            [*command, "--log-path", str(tmp_path / "logs"), *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"NO_COLOR": "1"},
        )  # fmt: skip

    refused = dbt("--vars", "as_of_lsn: 0/1")
    assert refused.returncode and "run cdc build --as-of-lsn" in refused.stdout
    done = dbt()
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.glob("metastore_db")) and not list(tmp_path.glob("derby.log"))
    results = json.loads((built.config.dbt_project.folder / "target" / "run_results.json").read_text())["results"]
    assert {r["status"] for r in results} <= {"success", "pass", "no-op"}  # of exposures, dbt builds nothing
    again = Lake.__new__(Lake)
    again.config = built.config
    from toolkit.lake.session import session

    again.spark = session(built.config.lake_access)
    assert again.rows(f"current.{again.alias(table.snapshot())}", table.snapshot()) == finished


@pytest.mark.wide
def test_own_models_never_stop_the_toolkits(built: Lake) -> None:
    """A model of the user's in the toolkit's project that fails, and one that keeps dbt from reading the project."""
    source, table = Source(), two_keys(300)
    source.baseline(table, first=True)
    built.append(source)
    marts = built.config.dbt_project.folder / "models" / "marts"
    marts.mkdir()
    failing = "select cast(raise_error('of the analyst') as string) as x from {{ ref('current__public__t300') }}"
    (marts / "failing.sql").write_text(failing)
    (marts / "failing.yml").write_text("models: [{name: failing, config: {materialized: table}}]")
    (reason,) = built.build().own_failed
    assert reason.startswith("failing: ") and "of the analyst" in reason
    check_current(built, source, [table])

    source.begin()
    source.insert(table, {1: "3", 2: "30", 3: "z"})
    source.commit()
    built.append(source)
    (marts / "unreadable.sql").write_text("select * from {{ ref('current__public__renamed') }}")
    (reason,) = built.build().own_failed
    assert "no model of the user's was run" in reason and "current__public__renamed" in reason
    check_current(built, source, [table])
    assert not list(built.config.lake_access.work_dir.glob("dbt-*"))

    (marts / "unreadable.sql").unlink()
    (marts / "failing.sql").write_text("select 1 as fine")
    assert built.build().own_failed == ()


@pytest.mark.wide
@pytest.mark.parametrize("own", ["packages.yml", "snapshots/own.sql", "on-run-start", "on-run-end"])
def test_nothing_of_the_users_in_the_project_stops_the_toolkits(built: Lake, own: str) -> None:
    """Packages that were not installed, a broken snapshot, and failing hooks."""
    source, table = Source(), two_keys(310)
    source.baseline(table, first=True)
    built.append(source)
    project, planted = built.config.dbt_project.folder, "select * from of_the_analyst"
    settings = (project / "dbt_project.yml").read_text()
    if own.startswith("on-run"):
        (project / "dbt_project.yml").write_text(settings.replace(f"{own}: [", f'{own}: ["{planted}", '))
    else:
        (project / own).parent.mkdir(exist_ok=True)
        text = (
            "packages: [{package: dbt-labs/dbt_utils, version: 1.3.0}]" if own == "packages.yml" else "{% snapshot %}"
        )
        (project / own).write_text(text)
    try:
        result = built.build()
        (reason,) = result.own_failed
        assert ("of_the_analyst" if own.startswith("on-run") else "no model of the user's was run") in reason
        names = [model.name for model in result.models]
        assert len(names) == len(set(names)) and actions(result)["current.public__t310"] == "rebuild"
        check_current(built, source, [table])
    finally:
        (project / "dbt_project.yml").write_text(settings)
        if not own.startswith("on-run"):
            (project / own).unlink()
    assert built.build().own_failed == ()


def test_a_stale_bag_that_does_not_add_up_stops_no_other_table(built: Lake) -> None:
    """A label renamed in a table without a key: the removed row has another text than the row that is there."""
    source = Source()
    bag = Table(300, "bag", [column(1, "a")], [], identity="f", rows=[{1: "old"}, {1: "other"}])
    keyed = two_keys(301)
    for table in (bag, keyed):
        source.baseline(table, first=True)
    source.begin()
    source.gap(bag)
    source.delete(bag, {1: "new"})
    source.insert(bag, {1: "more"})
    source.insert(keyed, {1: "9", 2: "90", 3: "z"})
    source.commit()
    built.append(source)
    built.build()
    check_current(built, source, [keyed])
    states = {row[0]: row[1] for row in built.spark.sql("select relid, state from ops.tables").collect()}
    assert states == {300: "stale", 301: "ok"}
    assert built.rows("history.public__bag", bag.snapshot()).total() == 3


@pytest.mark.wide
def test_as_of_knows_the_tables_and_names_at_that_lsn(built: Lake) -> None:
    """It knew only the tables of now: a dropped one was left out, and one of a pair that swapped was the other one."""
    source = Source()
    old, new, gone, unverified, lost = (two_keys(n) for n in range(300, 305))
    old.name, new.name = "t", "shadow"
    new.rows = [{1: "7", 2: "70", 3: "of the shadow"}]
    for table in (old, new, gone, unverified, lost):
        source.baseline(table, first=True)
    then, shapes = Lsn(source.lsn), {t.relid: t.snapshot() for t in (old, new, gone, unverified)}
    source.begin()
    old.name, new.name = "old", "t"
    source.schema(old)
    source.schema(new)
    for table in (gone, lost):
        table.dropped = True
        source.schema(table)
    source.create(Table(900, gone.name, [column(1, "other")], [1]))
    source.insert(source.tables[900], {1: "new"})
    source.commit()
    source.begin()
    source.gap(unverified)
    source.commit()
    red = Lsn(source.end_lsn)
    source.baseline(unverified)
    built.append(source)
    built.build()
    assert built.build(as_of=then).stale == ()
    for relid, shape in shapes.items():
        want = source.at(relid, then)
        assert want is not None
        assert built.rows(f"asof_{then.tag}.{built.alias(shape)}", shape) == want[0], shape["name"]
    assert not commands.sync(built.config).written  # the current models are back

    refused = built.build(as_of=red)
    assert [(s.table, s.state, s.reason) for s in refused.stale] == [("public.t303", "stale", "test gap")]
    assert not built.spark.catalog.tableExists(f"asof_{red.tag}.public__t303")
    assert built.build(as_of=Lsn(source.lsn), select=["public__t303"]).stale == ()
    assert [s.table for s in built.build(as_of=red, select=["public__t303"]).stale] == ["public.t303"]

    assert {row["v"] for row in rows_at_lsn.rows(lake_of(built.config), "t", as_of=then)} == {"x", "y"}
    want = source.at(gone.relid, then)
    assert want is not None  # it was answered with no rows: another table has its name
    assert (
        Counter(tuple(row.values()) for row in rows_at_lsn.rows(lake_of(built.config), "t302", as_of=then)) == want[0]
    )
    with pytest.raises(ConfigError, match="was dropped at"):
        rows_at_lsn.rows(lake_of(built.config), "t304", as_of=Lsn(source.lsn))  # as if it were still there


@pytest.mark.wide
def test_an_lsn_before_the_log_is_refused(built: Lake) -> None:
    """A build as of it made nothing and succeeded, as if the source had had no table."""
    source = Source()
    table = two_keys(300)
    source.baseline(table, first=True)
    cut = source.truth[300][0][0]
    built.append(source)
    with pytest.raises(BuildFailed, match=r"LSN 0/FF8 is before the log, which begins at 0/1008; give"):
        built.build(as_of=Lsn(cut - 8))
    assert actions(built.build(as_of=Lsn(cut))).keys() == {f"asof_{Lsn(cut).tag}.public__t300"}


@pytest.mark.wide
def test_what_an_earlier_build_as_of_an_lsn_made_goes_when_it_is_unknown_there(built: Lake) -> None:
    """A table that the build called stale, and did not build, kept the rows of the build before."""
    source = Source()
    stale, fine = two_keys(300), two_keys(301)
    for table in (stale, fine):
        source.baseline(table, first=True)
    then = Lsn(source.lsn)
    source.begin()
    source.delete(stale, stale.rows[0])
    source.commit()
    built.append(source)
    assert built.build(as_of=then).stale == ()
    own_session(built.config.lake_access).sql(f"create table asof_{then.tag}.of_the_user as select 1 as x")
    source.begin()
    source.commit_lsn, source.end_lsn, last = then - 8, int(then), source.end_lsn
    source.gap(stale)  # it is found late
    source.end_lsn = last
    source.commit()
    built.append(source)
    again = built.build(as_of=then, select=["public__t301"])
    assert again.stale == () and actions(again) == {f"{again.schema}.public__t301": "rebuild"}
    assert set(reads.tables(built.config.lake_access, again.schema)) == {"of_the_user", "public__t301"}
    assert [s.table for s in built.build(as_of=then).stale] == ["public.t300"]


def test_rows_at_an_lsn_have_the_labels_of_that_time(built: Lake) -> None:
    """`cdc rows --as-of` showed enum labels by later names, and once the column had another type by earlier ones."""

    def moods(first: str, *former: str) -> list[dict[str, Any]]:
        values = [{"oid": 7, "label": first}, {"oid": 8, "label": "it's y"}]
        plain = column(2, "mood", "mood", type_oid=90, type_kind="e", enum_labels=values)
        values = [{"oid": 7, "label": first}, {"oid": 8, "label": "b"}]
        many = column(3, "moods", "mood[]", type_oid=91, inner_labels=values)
        return [c | {"former_labels": [{"oid": 7, "label": name} for name in former]} for c in (plain, many)]

    source, table = Source(), Table(400, "feels", [column(1, "id", "integer"), *moods("x")], [1])
    table.rows = [{1: "1", 2: "x", 3: "{x,b}"}, {1: "2", 2: "it's y", 3: None}]
    source.baseline(table, first=True)
    points = [source.lsn]
    for label, former in (("z", ("x",)), ("x again", ("x", "z"))):
        source.begin()
        table.columns = [table.columns[0], *moods(label, *former)]
        source.schema(table)
        source.commit()
        points.append(source.lsn)
    # A label that may be quoted inside an array makes the table stale.
    points.pop()
    source.begin()
    source.gap(table)
    source.commit()
    table.columns = [table.columns[0], *moods("x again")]
    table.rows[0] |= {2: "x again", 3: '{"x again",b}'}
    source.baseline(table, first=True)
    points.append(source.lsn)
    built.append(source)
    built.build()
    wanted = [("x", "{x,b}"), ("z", "{z,b}"), ("x again", '{"x again",b}')]

    def shown(at: int) -> list[tuple[str | None, str | None]]:
        found = rows_at_lsn.rows(lake_of(built.config), "public.feels", Lsn(at))
        return [(row["mood"], row["moods"]) for row in sorted(found, key=lambda row: str(row["id"]))]

    assert [shown(at) for at in points] == [[one, ("it's y", None)] for one in wanted]
    assert rows_at_lsn.rows(lake_of(built.config), "public.feels", Lsn(points[1]), {"mood": "z"})[0]["moods"] == "{z,b}"

    source.begin()
    source.gap(table)
    table.columns = [column(1, "id", "integer"), column(2, "mood"), column(3, "moods", "integer")]
    source.schema(table)
    source.commit()
    for row in table.rows:
        row |= {2: "text", 3: "5"}
    source.baseline(table, first=True)
    built.append(source)
    built.build()
    points.append(source.lsn)
    assert [shown(at) for at in points] == [*([one, ("it's y", None)] for one in wanted), [("text", "5")] * 2]
