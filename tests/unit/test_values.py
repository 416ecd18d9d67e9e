"""The shared values: LSNs, configuration, catalog snapshots and the ledger row."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import toolkit
from toolkit.cli import main
from toolkit.lake import session
from toolkit.rawlog.arrow import EVENT_SCHEMA, Event, to_arrow
from toolkit.rawlog.batch import BatchRecord, SourceIdentity, batch_event
from toolkit.rawlog.event import (
    Baseline,
    Covers,
    Gap,
    GapReasons,
    Note,
    StreamMessage,
    read_message,
)
from toolkit.rawlog.memory import MemoryReading
from toolkit.values import config as configuration
from toolkit.values import spark_keys
from toolkit.values.errors import ConfigError, LakeError
from toolkit.values.lsn import Lsn
from toolkit.values.names import nearest
from toolkit.values.table import TableVersion

pytestmark = pytest.mark.unit

lsns = st.integers(min_value=0, max_value=2**63 - 1).map(Lsn)


# -- LSN ---------------------------------------------------------------------------------------------------------------


@given(lsns)
def test_an_lsn_reads_back_as_it_prints(lsn: Lsn) -> None:
    assert Lsn.parse(str(lsn)) == lsn


@given(lsns, lsns)
def test_tags_sort_as_positions_do(a: Lsn, b: Lsn) -> None:
    assert (a.tag < b.tag) == (a < b)


def test_trap_015_an_lsn_is_a_number() -> None:
    assert str(Lsn(0x16B3748)) == "0/16B3748"
    assert Lsn.parse("9/FFFFFFFF") < Lsn.parse("10/0")  # as text it is the other way round
    assert Lsn.parse(" a/b ") == Lsn(0xA_0000_000B)
    assert repr(Lsn(1)) == "Lsn('0/1')"


@pytest.mark.parametrize("text", ["", "16B3748", "0/", "/0", "0/16B37480F", "x/1", "0/1/2", "-1/0", "0x1/0"])
def test_a_malformed_lsn_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        Lsn.parse(text)


# -- configuration -----------------------------------------------------------------------------------------------------


def _write(folder: Path, text: str) -> str:
    file = folder / "cdc.toml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_configuration_file(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        '[source]\nconninfo = "service=shop"\ntables = ["public.*", "sales.o*"]\n'
        "[drain]\nmax_changes = 500\n[spark.spark.driver]\nmemory = '2g'\n",
    )
    config = configuration.load(path)
    assert config.source.conninfo == "service=shop"
    assert config.source.tables == ("public.*", "sales.o*")
    assert config.source.slot == "cdc"
    assert config.drain.max_changes == 500
    assert config.spark == {"spark.driver.memory": "2g"}
    assert config.lake_access.warehouse == str(tmp_path / "lake" / "warehouse")
    assert config.lake_access.catalog_db == tmp_path / "lake" / "catalog.db"
    assert config.lake_access.work_dir == tmp_path / "lake"


def test_the_environment_overrides_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path, '[source]\nslot = "one"\npublication = "kept"\n[drain]\nmax_changes = 500\n')
    monkeypatch.setenv("CDC_SOURCE__SLOT", "two")
    monkeypatch.setenv("CDC_DRAIN__MAX_CHANGES", "7")
    monkeypatch.setenv("CDC_ROOT", "/of/another/program")  # it moved the lake
    config = configuration.load(path)
    assert config.root == tmp_path
    assert (config.source.slot, config.source.publication, config.drain.max_changes) == ("two", "kept", 7)


def test_publications_are_one_name_or_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = configuration.load(_write(tmp_path, '[source]\npublication = "kept"\n')).source
    assert (one.publications, one.own, one.others) == (("kept",), "kept", ())
    path = _write(tmp_path, '[source]\npublication = ["mine", "t\'heir\\"s"]\n')
    two = configuration.load(path).source
    assert (two.own, two.others, two.publication_names) == ("mine", ("t'heir\"s",), '"mine", "t\'heir""s"')
    assert two.asks_for("any", "table") and not two.names("any", "table") and two.names("public", "table")
    monkeypatch.setenv("CDC_SOURCE__PUBLICATION", '["a", "b"]')
    monkeypatch.setenv("CDC_SOURCE__SCOPE", "published")
    theirs = configuration.load(path).source
    assert (theirs.own, theirs.others, theirs.names("public", "table")) == (None, ("a", "b"), False)


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_CONFIG", _write(tmp_path, '[source]\nslot = "here"\n'))
    assert configuration.load().source.slot == "here"


def test_a_byte_order_mark_is_no_part_of_the_configuration(tmp_path: Path) -> None:
    """Editors of Windows write one; it was an invalid statement at line 1, column 1."""
    (tmp_path / "cdc.toml").write_text('[source]\nslot = "here"\n', encoding="utf-8-sig")
    assert configuration.load(str(tmp_path / "cdc.toml")).source.slot == "here"


def test_no_file_at_all_is_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert configuration.load().source.publication == "cdc"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[source\n", "not valid TOML"),
        ("[sauce]\n", "sauce: unknown key"),
        ("[source]\nslott = 'x'\n", "source.slott: unknown key"),
        ("[source]\nslot = 'My-Slot'\n", "source.slot"),
        ("[drain]\nmax_changes = 'many'\n", "drain.max_changes"),
        ("[drain]\nmax_changes = 0\n", "drain.max_changes"),
        ("[lake]\ntype = 'glue'\n", "lake.type"),
        (
            "[source]\npublication = ['a', 'a']\n",
            "source.publication: Value error, a publication is one name, or a list",
        ),
        (
            "[spark.spark.drivr]\nmemory = '2g'\n",
            "'spark.drivr.memory' is no setting of Spark; did you mean 'spark.driv",
        ),
        ("[spark]\n'spark.sql.shufle.partitions' = 8\n", "did you mean 'spark.sql.shuffle.partitions'?"),
        ("[source]\npublication = []\n", "source.publication: Value error, a publication is one name, or a list"),
        (
            "root = '/elsewhere'\n",
            "root: unknown key; there are check, dbt, ddl, drain, lake, limits, log, notify, snapshot",
        ),
        ("[check]\nbuckets = 99999999999999\n", "check.buckets: Input should be less than or equal to 1048576"),
        (
            "[notify]\nwebhook = 'ftp://hooks.example/key'\n",
            "notify.webhook: Value error, it must be a URL that begins",
        ),
        ("[notify]\ncommand = ['']\n", "notify.command: Value error, its first word must be a program"),
    ],
)
def test_a_bad_configuration_is_one_line_that_names_the_key(tmp_path: Path, text: str, named: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        configuration.load(path)
    assert named in str(caught.value)
    assert "cdc.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "key", ["spark.sql.catalog.lake2.type", "spark.hadoop.fs.s3a.acces.key", "spark.openlineage.transport.type"]
)
def test_settings_that_are_not_spark_s_own_are_left_to_spark(tmp_path: Path, key: str) -> None:
    assert configuration.load(_write(tmp_path, f"[spark]\n'{key}' = 'x'\n")).spark == {key: "x"}


@pytest.mark.wide
def test_no_setting_that_spark_knows_is_refused() -> None:
    """Every name in Spark's own classes that looks like a setting is taken as it is."""
    import pyspark

    text = re.compile(rb"\x01(..)(spark\.[A-Za-z][\w-]*(?:\.[\w-]+)+)", re.DOTALL)  # a constant and its length
    names: set[str] = set()
    for jar in Path(pyspark.__file__).with_name("jars").glob("spark-*.jar"):
        with zipfile.ZipFile(jar) as file:
            found = (m for n in file.namelist() if n.endswith(".class") for m in text.finditer(file.read(n)))
            names |= {m[2].decode() for m in found if int.from_bytes(m[1]) == len(m[2])}
    assert len(names) > 1000
    names = {name for name in names if not name.startswith("spark.test")}
    assert {name: near for name in names if (near := spark_keys.misspelled(name))} == {}


@pytest.mark.parametrize(
    ("heap", "cores", "tasks"),
    [("2g", 64, 8), ("2g", 2, 2), ("512m", 64, 2), ("100m", 64, 1), ("1tb", 64, 64), ("half", 64, 1), (" 2G ", 64, 8)],
)
def test_local_mode_runs_no_more_tasks_than_the_heap_has_room_for(
    monkeypatch: pytest.MonkeyPatch, heap: str, cores: int, tasks: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    config = configuration.Config(spark={"spark.driver.memory": heap})
    assert session.spark_settings(config.lake_access)["spark.master"] == f"local[{tasks}]"


def test_a_variable_of_an_unknown_section_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_SAUCE__SLOT", "x")
    with pytest.raises(ConfigError, match=r"variable CDC_SAUCE__SLOT: .* did you mean source\?; rename or unset it"):
        configuration.load()
    monkeypatch.delenv("CDC_SAUCE__SLOT")
    monkeypatch.setenv("CDC_SOURCE", "1")
    with pytest.raises(ConfigError, match=r"^variable CDC_SOURCE: source: Input should be a valid dictionary"):
        configuration.load()


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such configuration file"):
        configuration.load(str(tmp_path / "other.toml"))
    with pytest.raises(ConfigError, match="not a regular file; create it or give another --config"):
        configuration.load(str(tmp_path))


# -- catalog -----------------------------------------------------------------------------------------------------------


def _column(attnum: int, name: str, **more: object) -> dict[str, object]:
    base: dict[str, object] = {
        "attnum": attnum, "name": name, "type_oid": "23", "type": "integer", "typmod": -1, "not_null": False,
        "type_kind": "b", "type_category": "N",
    }  # fmt: skip
    return base | more


def _table(**more: object) -> dict[str, object]:
    base: dict[str, object] = {
        "relid": "16384", "schema": "public", "name": "Orders", "kind": "r", "persistence": "p",
        "replica_identity": "d", "key_attnums": [3, 1], "primary_key": [3, 1],
        "columns": [_column(3, "c"), _column(1, "a", has_missing=True, missing="7")],
    }  # fmt: skip
    return base | more


def test_a_table_snapshot_reads_in_attnum_order() -> None:
    table = TableVersion.from_json(json.loads(json.dumps(_table())))
    assert [c.attnum for c in table.columns] == [1, 3]
    assert table.identifier == 'public."Orders"'
    assert table.width == 3  # attnum 2 was dropped; images keep its place
    assert table.keyed
    assert table.key_attnums == (3, 1)
    first = table.column("a")
    assert first is not None
    assert (first.has_missing, first.missing) == (True, "7")
    assert table.column("b") is None


@pytest.mark.parametrize(("identity", "key"), [("f", []), ("n", []), ("d", [])])
def test_a_table_without_a_usable_key_is_a_bag(identity: str, key: list[int]) -> None:
    assert not TableVersion.from_json(_table(replica_identity=identity, key_attnums=key)).keyed


def test_a_table_without_columns_has_width_zero() -> None:
    assert TableVersion.from_json(_table(columns=[], key_attnums=None)).width == 0


# -- ledger and events -------------------------------------------------------------------------------------------------

RECORD = BatchRecord(
    batch_id=4,
    generation=1,
    from_lsn=Lsn(10),
    upto_lsn=Lsn(30),
    complete_to=Lsn(20),
    origin="slot",
    slot="cdc",
    identity=SourceIdentity("7000000000000000001", 1, 5, {"cdc": 16400}),
    changes=3,
    counts={"row": 3, "batch": 1},
    beacon="0f",
    beacon_lsn=Lsn(40),
    committed_at="2026-01-01T00:00:00+00:00",
)


@pytest.mark.parametrize("record", [RECORD, replace(RECORD, beacon=None, beacon_lsn=None, counts={})])
def test_the_ledger_row_reads_back(record: BatchRecord) -> None:
    again = BatchRecord.from_json(record.to_json())
    assert again == record
    assert isinstance(again.complete_to, Lsn)


def test_the_next_ledger_row_continues_where_this_one_ends() -> None:
    event = Event(batch_id=5, generation=1, commit_lsn=99, ordinal=0, end_lsn=100, kind="gap")
    after = RECORD.next([event, event], rows={"row": 7}, changes=7, complete_to=Lsn(30))
    assert (after.batch_id, after.from_lsn, after.complete_to) == (5, RECORD.complete_to, Lsn(30))
    assert (after.changes, after.counts) == (7, {"row": 7, "gap": 2})
    assert after.committed_at > RECORD.committed_at
    kept = RECORD.next()
    assert (kept.changes, kept.counts, kept.complete_to) == (0, {}, RECORD.complete_to)
    same = {name: getattr(RECORD, name) for name in ("batch_id", "from_lsn", "changes", "counts", "committed_at")}
    assert replace(kept, **same) == RECORD


def test_ticks_of_an_earlier_generation_do_not_bound_an_lsn_of_this_one() -> None:
    """A restored source repeats LSNs: the state of another LSN was asked for, and a gap in between was missed."""
    tick = replace(RECORD, batch_id=3, origin="change_log", tick="1:2:", from_lsn=Lsn(10), complete_to=Lsn(90))
    by_slot = replace(RECORD, generation=2, from_lsn=Lsn(40), complete_to=Lsn(60))
    rows = [{name: getattr(batch_event(r), name) for name in EVENT_SCHEMA.names} for r in (tick, by_slot)]
    rules = configuration.Config().capture_rules
    assert MemoryReading(rules, 1, rows[:1]).exact_at(Lsn(50)) == 10
    assert MemoryReading(rules, 2, rows).exact_at(Lsn(50)) == 50


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        ('{"detail": {"tag": "ALTER TABLE"}, "reason": "r", "remedy": "cdc repair t"}',
         Gap("r", "cdc repair t", detail={"tag": "ALTER TABLE"})),
        ('{"first": "cdc init", "reason": "r", "remedy": "cdc repair t", "until": "0/16B3748"}',
         Gap("r", "cdc repair t", Lsn.parse("0/16B3748"), "cdc init")),
        ('{"reason": "r"}', Gap("r")),
    ],
)  # fmt: skip
def test_a_gap_reads_back(text: str, gap: Gap) -> None:
    assert Gap.from_json(text) == gap
    assert gap.to_json() == text


@pytest.mark.parametrize(
    ("text", "baseline"),
    [
        ('{"lsn": "0/8", "rows": 0, "scope": "all"}', Baseline(Lsn(8), 0)),
        ('{"lsn": "0/8", "rows": 2, "scope": "check"}', Baseline(Lsn(8), 2, Covers.CHECK)),
        ('{"columns": ["a", "b"], "lsn": "0/8", "rows": 2, "scope": "columns"}',
         Baseline(Lsn(8), 2, Covers.COLUMNS, ("a", "b"))),
        ('{"lsn": "0/8", "partition": "public.p1", "rows": 2, "scope": "partition"}',
         Baseline(Lsn(8), 2, Covers.PARTITION, partition="public.p1")),
        ('{"keys": 3, "lsn": "0/8", "rows": 2, "scope": "rows"}', Baseline(Lsn(8), 2, Covers.ROWS, keys=3)),
    ],
)  # fmt: skip
def test_a_baseline_reads_back(text: str, baseline: Baseline) -> None:
    assert Baseline.from_json(text) == baseline
    assert baseline.to_json() == text
    assert baseline.whole == (baseline.scope in ("all", "check"))


def test_payloads_of_old_lakes_are_read() -> None:
    assert Baseline.from_json('{"rows": 1}').scope == Covers.ALL
    assert Gap.from_json(None).reason == "None"
    assert Gap.from_json('{"remedy": null, "reason": "r", "detail": {}}') == Gap("r", detail={})


def test_several_reasons_make_one_gap() -> None:
    reasons = GapReasons("cdc repair t")
    for reason, detail in (("p was dropped, and more", {"a": 1}), ("p was dropped", {"b": 2}), ("p was dropped", {})):
        reasons.add(reason, detail)
    assert reasons.gap == Gap("p was dropped, and more; p was dropped", "cdc repair t", detail={"a": 1, "b": 2})


@pytest.mark.parametrize(
    "message",
    [
        Note("1-A-0", "looked at it", "ana", "2026-01-01T00:00:00+00:00"),
        StreamMessage("app", count=5, sha256="ab"),
        StreamMessage("cdc.resolved", "unknown prefix"),
    ],
)
def test_a_message_reads_back_and_none_of_the_stream_is_a_note(message: Note | StreamMessage) -> None:
    assert read_message(message.to_json()) == message


def test_driver_events_fit_the_raw_log() -> None:
    event = Event(
        batch_id=1, generation=1, commit_lsn=99, ordinal=1 << 40, end_lsn=100, kind="batch", payload=RECORD.to_json()
    )
    table = to_arrow([event, replace(event, kind="truncate", op="T", relid=5, unchanged=[1])])
    assert table.schema.equals(EVENT_SCHEMA)
    assert table.column("kind").to_pylist() == ["batch", "truncate"]
    assert to_arrow([]).num_rows == 0


def test_a_notebook_in_a_folder_of_the_project_finds_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cdc.toml").write_text('[source]\nslot = "above"\n', encoding="utf-8")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.delenv("CDC_CONFIG", raising=False)
    for named in (None, "cdc.toml", tmp_path / "cdc.toml"):
        opened = toolkit.open(named).config
        assert (opened.source.slot, opened.root) == ("above", tmp_path)
    with pytest.raises(ConfigError, match="no such configuration file"):
        toolkit.open("other.toml")


def test_a_log_of_another_format_is_refused() -> None:
    record = BatchRecord(1, 1, Lsn(0), Lsn(8), Lsn(8), "slot", "cdc", SourceIdentity("1", 1, 5, {"cdc": 6}), 0)
    record.require_format()
    with pytest.raises(LakeError, match="start a new log"):
        replace(record, format=record.format - 1).require_format()


@pytest.mark.parametrize(
    ("typed", "known", "said"),
    [
        ("ordrs", ["public.orders", "public.items"], "did you mean public.orders?"),
        ("public.ordrs", ["public.orders", "public.items"], "did you mean public.orders?"),
        ("pubic.orders", ["public.orders", "sales.orders"], "did you mean public.orders, sales.orders?"),
        ("public.nope", ["public.t", "public.u"], "there are public.t, public.u"),
        ("nme", ["id", "name"], "did you mean name?"),
        ("x", [f"c{i:02}" for i in range(12)], "there are c00, c01, c02, c03, c04, c05, c06, c07, c08, c09 and 2 more"),
        ("x", [], "there are none"),
    ],
)
def test_the_nearest_name_is_given_or_which_there_are(typed: str, known: list[str], said: str) -> None:
    """Names of one schema are not alike because of it."""
    assert nearest(typed, known) == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["biuld"], "build"),
        (["ddl", "lnit"], "lint"),
        (["status", "--ouput", "json"], "--output"),
        (["init", "--new-generatoin"], "--new-generation"),
    ],
)
def test_a_misspelt_command_or_option_gets_the_nearest(words: list[str], said: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and "Did you mean" in done.output and said in done.output.splitlines()[-1]
