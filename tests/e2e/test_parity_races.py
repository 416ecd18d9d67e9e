"""A check during DDL without a captured event, another run of dbt, without a free slot, and with a lock. One lake."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from tests import commands
from tests.support_ledger import ledger_of
from tests.support_postgres import fresh_database, run_sql
from toolkit.build import dbt_run
from toolkit.cli import main
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import plans, proofs, reads, session
from toolkit.ops import diagnosis, status_report
from toolkit.quality import row_classes
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.rawlog.plan import Layer
from toolkit.values.config import CheckConfig, Config, SourceConfig
from toolkit.values.errors import BuildFailed
from toolkit.values.resources import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

TABLES = """
create table public.item (id int primary key, v int);
insert into public.item select i, i from generate_series(1, 50) i;
create table public.quiet (id int primary key, v int);
insert into public.quiet select i, i from generate_series(1, 50) i;
create table public.root (id int primary key, v text) partition by range (id);
create table public.low partition of public.root for values from (0) to (100) partition by range (id);
create table public.low_1 partition of public.low for values from (0) to (50);
create table public.low_2 partition of public.low for values from (50) to (100);
insert into public.root select i, 'v' from generate_series(10, 90, 10) i;
create table public.filled (id int primary key, v text);
insert into public.filled values (150, 'v');
create table public.parent (id bigint, code varchar(8), v numeric, primary key (id, code));
create unique index on public.parent (v);
insert into public.parent values (1, 'a', 1.0), (2, 'b', 2.0);
create table public.child (
  id int primary key, up int references public.child, p int, code text, v numeric references public.parent (v),
  constraint both_of_it foreign key (p, code) references public.parent
);
insert into public.child values (1, null, 1, 'a', 1), (2, 1, 2, 'b', 2.00), (3, 1, null, 'zz', null);
alter table public.child add constraint loose foreign key (up) references public.item not valid;
create table public.many (id bigint primary key, v text, price numeric(10,2));
insert into public.many select i, 'v' || i, i from generate_series(1, 120000) i;
create publication cdc with (publish_via_partition_root);
"""


@pytest.fixture(scope="module")
def source(pg16: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory, _jvm: None) -> Iterator[Config]:
    with fresh_database(pg16) as conninfo:
        config = Config(
            root=tmp_path_factory.mktemp("races"),
            source=SourceConfig(conninfo=conninfo, slot="cdc_races", exclude=("public.filled",)),
            check=CheckConfig(full_rows=0, full_hours=24, cut_seconds=2.0),
        )
        shutil.copytree(
            ROOT / "dbt_project", config.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs")
        )
        run_sql(config, TABLES)
        commands.init(config)
        assert _check(config).green
        yield config


def _check(
    config: Config, *tables: str, build: Callable[..., object] = commands.build, full: bool = False
) -> CheckReport:
    return commands.check(config, tables, drain=commands.drain, build=build, full=full)


def _by_name(report: CheckReport) -> dict[str, TableCheck]:
    return {t.table.removeprefix("public."): t for t in report.tables}


@contextmanager
def _uncaptured(config: Config) -> Iterator[None]:
    """As on a server where no one records DDL."""
    triggers = "select evtname from pg_event_trigger where evtname like '\\_cdc\\_%'"
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        names = [name for (name,) in conn.execute(triggers).fetchall()]
        for how in ("disable", "enable always"):
            for name in names:
                conn.execute(f"alter event trigger {name} {how}".encode())
            if how == "disable":
                yield


def test_trap_141_a_run_of_dbt_from_before_the_cut_is_no_difference(source: Config) -> None:
    """`dbt run` takes no lease: it fixes its position, and reaches a table when a check has built it further."""
    ledger = ledger_of(source)
    names = {v.table.relid: v.history_name for v in ledger.latest_versions().values()}  # the reading is of now
    relations = {(Layer.CURRENT, relid): f"current.{name}" for relid, name in names.items()}
    run_sql(source, "insert into public.item values (1000, 1)")

    def late(*arguments: str) -> Any:
        def build(config: Config, *, select: Sequence[str] | None = None) -> None:
            commands.build(config, select=select)
            show = partial(plans.show, session.session(config.lake_access), ledger, None, relations)
            show()
            results, _ = dbt_run._invoke(
                config.lake_access,
                ["run", "--select", "current__public__item", *arguments],
                show,
                dbt=config.dbt_project,
            )
            for result in results:
                if result.status == "error":
                    raise BuildFailed(result.message)

        return build

    item = _by_name(_check(source, "item", build=late()))["item"]
    assert item.status == "identical"  # it found the table ahead, and left it
    run_sql(source, "insert into public.item values (1001, 1)")
    with pytest.raises(BuildFailed, match="public__item: another run has built it further"):
        _check(source, "item", build=late("--full-refresh"))
    run_sql(source, "insert into public.item values (1002, 1)")
    before = reads.snapshot_id(source.lake_access, "current.public__item")

    def put_back(config: Config, *, select: Sequence[str] | None = None) -> None:
        """A tool outside the toolkit does it."""
        commands.build(config, select=select)
        call = f"call system.rollback_to_snapshot('current.public__item', {before})"
        session.own_session(config.lake_access).sql(call)

    item = _by_name(_check(source, "item", build=put_back))["item"]
    assert (item.status, item.remedy) == ("not_taken", "cdc check")
    assert "put back to an earlier LSN" in (item.reason or "")
    assert _by_name(_check(source, "item"))["item"].status == "identical"
    assert session.own_session(source.lake_access).table("published.public__item").where("id >= 1000").count() == 3


def test_what_another_runner_drains_during_a_check_is_not_taken_for_compared(source: Config) -> None:
    """A lost session frees the lease of the slot. The next check carried a proof that had not seen these changes."""
    assert _check(source).green

    def overtaken(later: str, *, built: bool) -> Callable[..., None]:
        def build(config: Config, *, select: Sequence[str] | None = None) -> None:
            commands.build(config, select=select)
            run_sql(config, later)
            commands.drain(config)
            if built:
                commands.build(config)

        return build

    run_sql(source, "insert into public.item values (1100, 1)")
    found = _by_name(_check(source, build=overtaken("insert into public.item values (1101, 1)", built=False)))
    assert (found["item"].status, found["item"].proof) == ("identical", "incremental")
    found = _by_name(_check(source))
    assert (found["item"].status, found["item"].proof) == ("identical", "incremental")
    assert found["quiet"].proof == "carried"
    run_sql(source, "insert into public.item values (1102, 1)")
    item = _by_name(_check(source, build=overtaken("delete from public.item where id > 1100", built=True)))["item"]
    assert (item.status, item.remedy) == ("not_taken", "cdc check")
    assert "built to a later LSN" in (item.reason or "")
    assert _by_name(_check(source))["item"].status == "identical"


def test_without_a_free_slot_a_whole_check_is_green(source: Config) -> None:
    with psycopg.connect(source.source.conninfo, autocommit=True) as conn:
        names = []
        try:
            with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
                for n in range(100):
                    conn.execute("select pg_create_physical_replication_slot(%s)", [f"full_{n}"])
                    names.append(f"full_{n}")
            # A transaction of DDL alone comes last: the snapshot of the cut shows what it did.
            conn.execute("insert into public.item values (2000, 1)")
            conn.execute("alter table public.quiet alter v type int using v + 1")
            found = _by_name(_check(source))
        finally:
            for name in names:
                conn.execute("select pg_drop_replication_slot(%s)", [name])
    assert (found["item"].status, found["root"].status) == ("identical", "identical")
    assert found["quiet"].status == "stale"
    commands.repair(source)
    assert _check(source).green


def test_the_report_names_who_holds_a_lock(source: Config) -> None:
    with psycopg.connect(source.source.conninfo, application_name="migration") as holder:
        holder.execute("lock table public.item")
        report = _check(source.model_copy(update={"check": CheckConfig(cut_seconds=0.5)}))
        pid = holder.info.backend_pid
    found = _by_name(report)
    assert found["item"].status == "not_taken"
    assert f"pid {pid} (migration" in (found["item"].reason or "")
    assert f"pid {pid} (migration" in report.text
    assert {t.status for name, t in found.items() if name != "item"} == {"identical"}
    assert proofs.proofs_by_relid(ledger_of(source))[found["item"].relid]["status"] == "not_taken"


def test_rows_without_what_they_reference_are_red(source: Config) -> None:
    whole = _check(source, "child", "parent", "item", full=True)
    assert whole.green
    looked = {r.key.name: (r.orphans, r.reason) for r in whole.references if r.orphans is not None or r.reason}
    assert looked == {
        "both_of_it": (0, None),
        "child_up_fkey": (0, None),
        "child_v_fkey": (None, "equal values of numeric and numeric may have other texts"),
        "loose": (None, "it is NOT VALID"),
    }
    run_sql(source, "set session_replication_role = replica", "insert into public.child values (4, 9, 1, 'b', 1)")
    settings = f'[source]\nconninfo = "{source.source.conninfo}"\nslot = "cdc_races"\nexclude = ["public.filled"]\n'
    (source.root / "cdc.toml").write_text(settings, encoding="utf-8")
    arguments = ["check", "child", "parent", "--full", "--config", str(source.root / "cdc.toml")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 3, done.output
    assert "all identical, but rows lack what they reference" in done.output
    assert "both_of_it of public.child: 1 rows without their row in public.parent, on the source too: (1, b)" in (
        done.output
    )
    assert "child_up_fkey of public.child: 1 rows without their row in public.child, on" in done.output
    shown = status_report.status(source)  # every table is identical, and the check was red all the same
    assert shown.failing and "public.child: 2 rows reference a row that is missing" in shown.summary
    assert any("2 rows reference" in d.found for d in diagnosis.doctor(source) if d.level == "error")
    run_sql(source, "delete from public.child where id = 4")
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert status_report.status(source).alerts != ()  # a key of child references item, which was not looked at
    assert _check(source, "child", "parent", "item", full=True).green
    assert status_report.status(source).alerts == ()


def test_faults_in_a_table_of_many_buckets_are_classed(source: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough rows for thousands of buckets, of which some hundred differ; their lines are spooled in parts."""
    monkeypatch.setattr(row_classes, "_PART", 2_000)
    spark = session.own_session(source.lake_access)

    def many() -> TableCheck:
        return _by_name(_check(source, "many", full=True))["many"]

    green = many()
    assert (green.status, green.identical, green.proof) == ("identical", 120_000, "full")
    snapshot_id = spark.table("current.public__many.refs").where("name = 'main'").collect()[0]["snapshot_id"]
    for fault, counts in (
        ("UPDATE current.public__many SET v = concat(v, ' ') WHERE id % 1000 = 7", (120, 0, 0)),
        ("UPDATE current.public__many SET price = price + 0.01, _cdc_text = NULL WHERE id = 77777", (121, 0, 0)),
        ("DELETE FROM current.public__many WHERE id % 1000 = 8", (121, 0, 120)),
        (
            "INSERT INTO current.public__many SELECT id + 1000000, v, price, _cdc_from_lsn, _cdc_text"
            " FROM current.public__many WHERE id % 1000 = 9",
            (121, 120, 120),
        ),
    ):
        spark.sql(fault)
        found = many()
        assert (found.status, found.rows) == ("different", 120_000), fault
        assert (found.modified, found.added, found.removed) == counts, fault
    assert found.identical == 120_000 - 241
    reported = {(s.kind, d.column) for s in found.samples for d in s.differences}
    assert reported <= {("modified", "v"), ("modified", "price")}
    assert {s.cause.kind for s in found.samples if s.cause} == {"tampered"}
    catalog = source.lake.catalog
    spark.sql(f"CALL {catalog}.system.set_current_snapshot('current.public__many', {snapshot_id}L)")
    assert many().status == "identical"


def test_a_lost_file_of_a_table_proven_by_touched_keys_costs_this_table_alone(source: Config) -> None:
    """Spark's error ended the check, and no table had a result."""
    assert _check(source).green
    run_sql(source, "update public.many set v = 'touched' where id = 7", "update public.quiet set v = 1 where id = 7")
    commands.drain(source)
    commands.build(source)
    files = list(source.root.glob("lake/warehouse/current/public__many*/data/*.parquet"))
    assert files
    try:
        for file in files:
            file.rename(file.with_suffix(".gone"))
        found = _by_name(_check(source))
    finally:
        for file in files:
            file.with_suffix(".gone").rename(file)
    assert found["many"].status == "not_taken"
    assert (found["many"].reason or "").startswith("the comparison failed: ")
    assert {t.status for name, t in found.items() if name != "many"} == {"identical"}
    assert _check(source).green


def test_what_changed_uncaptured_is_never_carried(source: Config) -> None:
    """No key is touched by it, no drain of a check compares the catalog: only the table itself can tell."""
    run_sql(source, "delete from public.item where id > 50")  # of the tests above
    assert _check(source, "item").green
    reported = {name: t.proof for name, t in _by_name(_check(source)).items()}
    assert set(reported.values()) == {"carried"}
    # Due: a full pass, whatever the log says.
    due = source.model_copy(update={"check": source.check.model_copy(update={"full_hours": 1e-6})})
    assert {t.proof for t in _check(due).tables} == {"full"}
    for ddl, undo, table, counts in (
        ("alter table public.item alter v type int using v + 1", "", "item", (50, 0, 0)),
        (
            "alter table public.root attach partition public.filled for values from (100) to (200)",
            "alter table public.root detach partition public.filled",
            "root",
            (0, 0, 1),
        ),
        (
            "begin; alter table public.low detach partition public.low_2; update public.low_2 set v = 'w';"
            " alter table public.low attach partition public.low_2 for values from (50) to (100); commit",
            "",
            "root",
            (5, 0, 0),
        ),
        ("alter table public.low_1 disable trigger user; truncate public.low_1", "", "root", (5, 4, 0)),
        (
            "alter publication cdc set (publish = 'insert'); delete from public.item where id = 7;"
            " alter publication cdc set (publish = 'insert, update, delete, truncate')",
            "",
            "item",
            (49, 1, 0),
        ),
    ):
        with _uncaptured(source):
            run_sql(source, *ddl.split("; "))
        red = _by_name(_check(source))
        found = red[table]
        assert (found.proof, found.status) == ("full", "different"), ddl
        assert (found.modified, found.added, found.removed) == counts, ddl
        if undo:
            with _uncaptured(source):
                run_sql(source, undo)
    # VACUUM FULL makes another file too, and then all is read and found equal.
    run_sql(source, "vacuum full public.quiet")
    quiet = _by_name(_check(source, "quiet"))["quiet"]
    assert (quiet.proof, quiet.status) == ("full", "identical")
    assert _by_name(_check(source, "quiet"))["quiet"].proof == "carried"
    commands.drain(source)  # compares the catalog
    commands.repair(source)
    assert _check(source).green


def test_small_tables_that_nothing_touched_take_turns(source: Config) -> None:
    """A thousand quiet tables must not be read for one that changed, and none may go uncompared for long."""
    limits = {"full_rows": 1_000_000, "full_tables": 2}
    small = source.model_copy(update={"check": source.check.model_copy(update=limits)})
    assert _check(source, full=True).green
    tables = len(_by_name(_check(small)))
    whole: list[str] = []
    for _ in range(-(-tables // 2)):
        report = _check(small)
        assert report.green
        found = [name for name, t in _by_name(report).items() if t.proof == "full"]
        assert len(found) == 2
        whole += found
    assert len(set(whole)) == tables
    run_sql(source, "update public.many set v = 'touched' where id = 77", "update public.item set v = v where id = 3")
    report = _check(small)
    assert report.green
    assert {"many", "item"} <= {name for name, t in _by_name(report).items() if t.proof == "full"}
    assert len([t for t in report.tables if t.proof == "full"]) <= 4
    # A commit that no build made is no quiet table, whenever its turn is.
    spark, name = session.own_session(source.lake_access), "current.public__quiet"
    snapshot_id = reads.snapshot_id(source.lake_access, name)
    spark.sql(f"DELETE FROM {name}")
    turns = small.model_copy(update={"check": small.check.model_copy(update={"full_tables": 0})})
    quiet = _by_name(_check(turns))["quiet"]
    assert (quiet.status, quiet.proof) == ("different", "full")
    spark.sql(f"CALL {source.lake.catalog}.system.set_current_snapshot('{name}', {snapshot_id}L)")
    assert _check(turns).green
