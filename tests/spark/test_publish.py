"""What readers rely on while `published` moves: proven rows only, and one LSN for whoever asks for it."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import commands
from tests.support_ledger import lake_of, ledger_of
from tests.support_publish import TABLES, Shop, shop
from toolkit.history import rows_at_lsn
from toolkit.lake import check_results, proofs, published_views, reads, table_states
from toolkit.lake.scans import scan
from toolkit.ops.table_results import checked_tables
from toolkit.quality import differing_rows, published, trend
from toolkit.quality.report import CheckReport, Reference
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Baseline, Covers
from toolkit.values.errors import CommitConflict, ConfigError, NotProven
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CheckStatus
from toolkit.values.table import ForeignKey

if TYPE_CHECKING:
    pass

__all__ = ["shop"]
pytestmark = [pytest.mark.spark, pytest.mark.wide]


def _later(*, days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days, minutes=1)


class Killed(BaseException):
    """The process ends here."""


def _killed_at(patch: pytest.MonkeyPatch, shop: Shop, step: Callable[..., Any], number: int, **statuses: str) -> None:
    """Publish, and end at the `number`th call of a step, before it does anything."""
    module, calls = sys.modules[step.__module__], []

    def killed(*arguments: Any, **named: Any) -> None:
        calls.append(arguments)
        if len(calls) == number:
            raise Killed
        step(*arguments, **named)

    with patch.context() as inner:
        inner.setattr(module, step.__name__, killed)
        with pytest.raises(Killed):
            shop.publish(None, **statuses)


def test_a_damaged_view_does_not_keep_the_others_from_their_proofs(shop: Shop) -> None:
    """The views of all tables stood still for one, and the results of the check were not written."""
    shop.build(1)
    shop.publish()
    view = Path(str(reads.metadata_location(shop.config.lake_access, "published.public__b")).removeprefix("file:"))
    whole = view.read_bytes()
    view.write_bytes(b"")
    shop.build(2)
    found = commands.publish(shop.config, shop.report())
    assert (found.moved, set(found.unmoved)) == (("public.a",), {"published.public__b"})
    newest = [(row["table"], row["published"]) for row in trend.results(shop.config.lake_access) if row["lsn"] == 2]
    assert newest == [("public.a", True), ("public.b", False)]
    assert {row["lsn"] for row in shop.proofs().values()} == {2}
    view.write_bytes(whole)
    assert shop.seen() == (2, 1)
    found = commands.publish(shop.config, shop.report())
    assert found.unmoved == {} and shop.seen() == shop.seen_at_one_lsn() == (2, 2)


def test_a_branch_named_like_a_tag_does_not_keep_other_tables_from_their_proofs(shop: Shop) -> None:
    """The check ended with an error of Spark, and no result of any table was written."""
    shop.build(1)
    made = reads.snapshot_id(shop.config.lake_access, "current.public__a")
    shop.spark.sql(f"alter table current.public__a create branch `proven_g1_{made}`")
    found = commands.publish(shop.config, shop.report())
    assert found.moved == ("public.b",) and set(found.unmoved) == {"published.public__a"}
    assert found.unmoved["published.public__a"].endswith(
        f"run ALTER TABLE current.public__a DROP BRANCH `proven_g1_{made}`, and `cdc check` again"
    )
    assert {row["table"]: row["lsn"] for row in shop.proofs().values()} == {"public.a": None, "public.b": 1}
    shop.spark.sql(f"alter table current.public__a drop branch `proven_g1_{made}`")
    assert commands.publish(shop.config, shop.report()).unmoved == {}
    assert shop.seen() == shop.seen_at_one_lsn() == (1, 1)


def test_a_reader_sees_proven_rows_only_through_a_swap_and_a_kill(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotProven, match=r"never"):
        rows_at_lsn.at_one_lsn(lake_of(shop.config), shop.spark)
    shop.build(1)
    shop.publish()
    assert shop.seen() == shop.seen_at_one_lsn() == (1, 1)
    shop.build(2)
    assert shop.seen() == shop.seen_at_one_lsn() == (1, 1)  # built, and not proven
    _killed_at(monkeypatch, shop, check_results.replace_read, 1)
    assert shop.seen() == shop.seen_at_one_lsn() == (1, 1)
    _killed_at(monkeypatch, shop, published_views._create, 2)
    # Each view shows a proof, and a join of them two of them: whoever wants one LSN has it.
    half = shop.seen()  # threads make the views
    assert sorted(half) == [1, 2]
    assert shop.seen_at_one_lsn() == (2, 2)
    # Whatever the next check finds, views and proofs come to say the same, and nothing that is shown is let go.
    shop.build(3)
    shop.maintain()
    assert shop.seen() == half
    shop.publish(a="different", b="different")
    assert shop.seen() == shop.seen_at_one_lsn() == (2, 2)
    assert {row["proven_lsn"] for row in shop.spark.table("ops.proofs").collect()} == {"0/2"}
    shop.maintain()
    assert shop.seen() == shop.seen_at_one_lsn() == (2, 2)
    assert {len([t for t in tags if t.startswith("proven")]) for tags in shop.tags().values()} == {1}
    _killed_at(monkeypatch, shop, check_results.write, 1)  # behind the views
    assert shop.seen() == shop.seen_at_one_lsn() == (3, 3)


def test_no_state_counts_between_a_difference_and_the_states_after_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that was killed there left `ops.tables` saying ok of a table that the check had found to differ."""

    def judged() -> set[int | None]:
        return {row["batch_id"] for row in scan(shop.config.lake_access, "ops.table_states")}

    shop.build(1)
    shop.publish()
    _killed_at(monkeypatch, shop, table_states.write, 1)
    assert judged() == {1}
    _killed_at(monkeypatch, shop, check_results.replace_read, 1, a="different")
    assert judged() == {None}
    shop.publish(a="different")
    assert judged() == {1}


def test_readers_meet_proofs_only_while_checks_swap(shop: Shop) -> None:
    shop.build(1)
    shop.publish()
    stop, seen = threading.Event(), Counter[tuple[int, int]]()
    wrong: list[object] = []

    def read() -> None:
        try:
            while not stop.is_set():
                pair, exact = shop.seen(), shop.seen_at_one_lsn()
                seen[pair] += 1
                if exact[0] != exact[1] or not {*pair, *exact} <= set(range(1, 7)):
                    wrong.append((pair, exact))
        except Exception as error:
            wrong.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for lsn in range(2, 7):
        shop.build(lsn, n=1000 + lsn)  # what no one may see
        shop.publish(a="different", b="different")
        shop.build(lsn)
        shop.publish()
    stop.set()
    reader.join(60)
    assert not wrong
    assert len(seen) > 1


def test_what_is_shown_is_what_was_proven_whatever_becomes_of_tags(shop: Shop) -> None:
    shop.build(1)
    for name in TABLES:  # an analyst's own, on the same table snapshot
        shop.spark.sql(f"ALTER TABLE current.public__{name} CREATE TAG latest")
    shop.publish()
    shop.build(1, n=7)  # built again at the same LSN, and wrong: the build's tag names this one now
    for name in TABLES:
        shop.spark.sql(f"ALTER TABLE current.public__{name} CREATE OR REPLACE TAG latest")
    assert shop.seen() == shop.seen_at_one_lsn() == (1, 1)
    shop.publish(a="different", b="different")
    shop.maintain()
    assert shop.seen() == shop.seen_at_one_lsn() == (1, 1)
    assert {row["proven_lsn"] for row in shop.spark.table("ops.proofs").collect()} == {"0/1"}


def test_an_older_check_that_ends_late_moves_nothing_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checks on two hosts: the leases of a lake of files do not keep them apart."""
    shop.build(1)
    late, red = shop.report(), shop.report(a="different", b="different")
    shop.build(2)
    shop.publish()
    assert commands.publish(shop.config, late).moved == ()
    assert commands.publish(shop.config, red).moved == ()
    assert shop.seen() == shop.seen_at_one_lsn() == (2, 2)
    stored = shop.spark.table("ops.proofs").collect()
    assert {(row["status"], row["proven_lsn"]) for row in stored} == {("identical", "0/2")}
    commands.publish(shop.config, shop.report())  # at the same LSN once more
    assert shop.seen() == (2, 2)
    newer = shop.report()
    shop.build(3)
    newest = shop.report()

    def overtaken(step: Callable[..., Any]) -> Callable[..., Any]:
        """The newest check runs as a whole in the middle of this one, once."""
        once = [newest]

        def run(*arguments: Any, **named: Any) -> Any:
            if once:
                commands.publish(shop.config, once.pop())
            return step(*arguments, **named)

        return run

    with monkeypatch.context() as patch:  # between what it read and its commit
        patch.setattr(published_views, "keep", overtaken(published_views.keep))
        with pytest.raises(CommitConflict, match=r"ops\.published: another runner .* run it again"):
            commands.publish(shop.config, newer)
    assert shop.seen() == shop.seen_at_one_lsn() == (3, 3)
    newer = shop.report()
    shop.build(4)
    newest = shop.report()
    with monkeypatch.context() as patch:  # between its commit and its views
        patch.setattr(published_views, "_show", overtaken(published_views._show))
        commands.publish(shop.config, newer)
    assert shop.seen() == shop.seen_at_one_lsn() == (4, 4)


def test_an_older_check_that_ends_late_proves_no_table_that_a_newer_one_found_to_differ(shop: Shop) -> None:
    """A table that was never proven had no tag, and so no generation: the older check called it identical."""
    shop.build(1)
    late = shop.report()
    shop.build(2)
    shop.publish(a="different", b="not_taken")
    assert commands.publish(shop.config, late).moved == ()
    rows = shop.proofs().values()
    assert {(row["status"], row["lsn"], row["generation"], row["checked_lsn"]) for row in rows} == {
        ("different", None, 1, 2),
        ("not_taken", None, 1, 2),
    }


def test_a_difference_stays_known_until_a_check_compares_the_table_again(shop: Shop) -> None:
    """A check that a lock, or no cut, kept from comparing it made `ops.tables` and `cdc rows --as-of` call it ok."""
    shop.build(1)
    shop.publish()
    access = shop.config.lake_access
    event = Event(
        batch_id=2, generation=1, commit_lsn=0, ordinal=order.BASELINE, end_lsn=1, kind="baseline", origin="snapshot",
        relid=TABLES["a"], schema_id=1, payload=Baseline(Lsn(1), 1, Covers.ALL).to_json(),
    )  # fmt: skip
    ledger_of(shop.config).append_empty(replace(shop.last(), batch_id=2, complete_to=Lsn(0x1008)), [event])

    def differs() -> bool:
        state = next(s for s in proofs.current_states(ledger_of(shop.config)) if s.relid == TABLES["a"])
        assert (state.state == "stale") == (TABLES["a"] in proofs.differing_tables(access, ledger_of(shop.config)))
        return state.state == "stale" and state.comparable

    assert not differs()
    shop.build(2)
    shop.publish(a="different")
    assert differs()
    shop.build(3)
    shop.publish(a="not_taken")
    assert differs()
    nothing = tuple(replace(t, status=CheckStatus.NOT_TAKEN, snapshot_id=None) for t in shop.report().tables)
    commands.publish(shop.config, CheckReport(None, nothing))
    assert differs()
    shop.publish()
    assert not differs()


def test_a_difference_of_an_earlier_generation_is_none_of_the_new_log(shop: Shop) -> None:
    """The new log may begin at a lower LSN. A repair then wrote a gap at an LSN of the old one."""
    shop.build(1)
    shop.publish(a="different")
    access, last = shop.config.lake_access, shop.last()

    def copied(generation: int, lsn: int) -> None:
        record = replace(last, batch_id=generation + 1, generation=generation, complete_to=Lsn(lsn + 8))
        event = Event(
            batch_id=generation + 1, generation=generation, commit_lsn=lsn - 1, ordinal=order.BASELINE, end_lsn=lsn,
            kind="baseline", origin="snapshot", relid=TABLES["a"], schema_id=1,
            payload=Baseline(Lsn(lsn), 1, Covers.ALL).to_json(),
        )  # fmt: skip
        ledger_of(shop.config).append_empty(record, [event])

    copied(1, 0x800)
    shop.lsn = 0x900
    shop.publish(a="different")
    assert proofs.differing_tables(access, ledger_of(shop.config)) == {TABLES["a"]: (Lsn(0x800), Lsn(0x900))}
    copied(2, 0x700)
    assert proofs.differing_tables(access, ledger_of(shop.config)) == {}


def test_no_table_of_a_new_generation_is_taken_for_an_earlier_one_with_its_relid(shop: Shop) -> None:
    """A database that was dumped and restored gives its tables other relids."""
    shop.build(1)
    shop.publish()
    shop.publish(a="different")
    ledger_of(shop.config).append_empty(replace(shop.last(), batch_id=2, generation=2), [])
    shop.create("c", TABLES["a"])
    shop.create("b", 16403)
    with pytest.raises(NotProven, match=r"public\.c \(never\)"):
        rows_at_lsn.at_one_lsn(lake_of(shop.config), shop.spark, ["c"])
    with pytest.raises(ConfigError, match="no check has compared it yet"):
        differing_rows.keys(lake_of(shop.config), "public.c")
    ledger = ledger_of(shop.config)
    assert {t.table: t.last_check for t in checked_tables(ledger)[0] if t.relid == TABLES["a"]} == {"public.c": None}
    assert published.published_lsn(ledger) is None
    commands.publish(shop.config, replace(shop.report(c="different"), batch_id=2))
    assert published.published(ledger_of(shop.config)).keys() == {"public.b"}
    commands.publish(shop.config, replace(shop.report(), batch_id=2))
    assert shop.seen() == (1, 16403)
    episodes = [(e.table, e.checks, e.healed_lsn) for e in trend.episodes(shop.config.lake_access)]
    assert episodes == [("public.a", 1, None), ("public.c", 1, Lsn(1))]


def test_a_check_that_ends_after_a_new_log_has_begun_publishes_nothing(shop: Shop) -> None:
    """It took a table of the new log for the one with the same relid, and ended with an error of Spark's own."""
    shop.build(1)
    whole = tuple(replace(table, full_lsn=Lsn(1)) for table in shop.report().tables)
    late = replace(shop.report(), tables=whole)
    ledger_of(shop.config).append_empty(replace(shop.last(), batch_id=2, generation=2), [])
    shop.create("c", TABLES["a"])
    before = shop.last()
    with pytest.raises(CommitConflict, match=r"generation 1 .* generation 2 has begun .* run `cdc check`"):
        commands.publish(shop.config, late)
    assert (shop.last(), shop.proofs(), shop.tags()["b"]) == (before, {}, {"g1_lsn_0000000000000001"})


def test_a_check_that_counted_no_orphans_forgets_none(shop: Shop) -> None:
    """A check without a cut counted nothing, and status then said that all rows have what they reference."""
    key = ForeignKey("b_a_fkey", TABLES["b"], TABLES["a"], (1,), (1,), None)
    shop.build(1)
    commands.publish(shop.config, replace(shop.report(), references=(Reference(key, 2),)))
    results = tuple(replace(table, status=CheckStatus.NOT_TAKEN) for table in shop.report().tables)
    commands.publish(shop.config, CheckReport(None, results))
    known = shop.proofs()
    assert {relid: row["orphans"] for relid, row in known.items()} == {TABLES["a"]: 0, TABLES["b"]: 2}
    shop.lsn = 2
    commands.publish(shop.config, replace(shop.report(), references=(Reference(key),)))  # proven by touched keys
    assert shop.proofs()[TABLES["b"]]["orphans"] == 2


def test_a_check_of_one_table_keeps_the_others_of_an_older_lake(shop: Shop) -> None:
    """The rows of the others lack the columns that this version adds."""
    shop.build(1)
    shop.publish()
    shop.spark.sql("ALTER TABLE ops.published DROP COLUMN orphans")
    shop.spark.sql("INSERT OVERWRITE ops.published SELECT * FROM ops.published")
    shop.build(2)
    report = shop.report()
    commands.publish(shop.config, replace(report, tables=report.tables[:1]), complete=False)
    rows = shop.proofs()
    assert {relid: (row["lsn"], row["orphans"]) for relid, row in rows.items()} == {
        TABLES["a"]: (2, 0),
        TABLES["b"]: (1, None),
    }


def test_the_companion_view_is_made_again(shop: Shop) -> None:
    shop.build(1)
    shop.publish()
    for statement in ("DROP VIEW ops.proofs", "CREATE OR REPLACE VIEW ops.proofs AS SELECT 1 AS old"):
        shop.spark.sql(statement)
        shop.publish()
        assert [r["proven_lsn"] for r in shop.spark.table("ops.proofs").collect()] == ["0/1", "0/1"]


def test_a_renamed_table_that_is_red_is_read_under_the_name_of_its_proof(shop: Shop) -> None:
    shop.build(1)
    shop.publish()
    shop.rename("a", "c")
    shop.spark.sql("CREATE TABLE current.public__c (n2 int, _cdc_from_lsn bigint) USING iceberg")
    shop.publish(c="different", b="different")
    assert shop.seen() == (1, 1)
    proof = shop.spark.table("ops.proofs").where("`table` = 'public.c'").first()
    assert proof is not None
    relation = f"current.{proof['relation']} VERSION AS OF '{proof['tag']}'"
    assert [row["n"] for row in shop.spark.sql(f"SELECT n FROM {relation}").collect()] == [1]
    assert rows_at_lsn.at_one_lsn(lake_of(shop.config), shop.spark) == 1
    assert [row["n"] for row in shop.spark.table("public__c").collect()] == [1]
    shop.spark.sql("INSERT INTO current.public__c VALUES (5, 5)")
    shop.publish()
    assert [row["n2"] for row in shop.spark.table("published.public__c").collect()] == [5]
    # Whoever reads the old name has some days to follow.
    assert [row["n2"] for row in shop.spark.table("published.public__a").collect()] == [5]
    shop.spark.sql("INSERT INTO current.public__c VALUES (6, 6)")
    shop.publish(at=_later(days=29))
    assert sorted(row["n2"] for row in shop.spark.table("published.public__a").collect()) == [5, 6]
    shop.publish(at=_later(days=30))
    assert reads.tables(shop.config.lake_access, "published", "VIEW") == ("public__b", "public__c")
    # The log has gone on since the comparison: what came then is not proven.
    assert {row["batch_id"] for row in shop.proofs().values()} == {1}


def test_the_view_of_a_dropped_table_shows_its_last_proof_until_a_table_takes_the_name(shop: Shop) -> None:
    shop.build(1)
    shop.publish()
    shop.drop("a")
    shop.build(2)
    shop.publish()
    shop.maintain()
    assert shop.seen() == (1, 2)
    shop.create("a", 16403)
    shop.publish(at=_later(days=1))
    assert shop.seen() == (16403, 2)
    shop.publish(at=_later(days=60))  # a name in use is not deprecated
    assert shop.seen() == (16403, 2)
    shop.drop("b")
    shop.publish(at=_later(days=61))
    assert shop.seen() == (16403, 2)
    shop.publish(at=_later(days=91))
    assert reads.tables(shop.config.lake_access, "published", "VIEW") == ("public__a",)


def test_the_view_of_a_dropped_table_does_not_follow_a_tag_that_was_moved(shop: Shop) -> None:
    """The check that first found the table dropped made the view again, of whatever the tag named then."""
    shop.build(1)
    shop.publish()
    (tag,) = (t for t in shop.tags()["a"] if t.startswith("proven_"))
    shop.build(1, n=7)
    shop.spark.sql(f"ALTER TABLE current.public__a CREATE OR REPLACE TAG {tag}")
    shop.drop("a")
    shop.publish()
    shop.maintain()
    assert shop.seen()[0] == 1


def test_a_red_table_stays_and_one_lsn_is_refused_by_its_name(shop: Shop) -> None:
    shop.build(1)
    shop.publish()
    shop.build(2)
    shop.publish(b="different")
    assert shop.seen() == (2, 1)
    with pytest.raises(NotProven, match=r"proven at 0/2, but not public\.b \(0/1\)"):
        shop.seen_at_one_lsn()
    assert rows_at_lsn.at_one_lsn(lake_of(shop.config), shop.spark, ["b"]) == 1
    assert [row[0] for row in shop.spark.table("public__b").collect()] == [1]
    stored = {row["table"]: row["status"] for row in shop.spark.table("ops.proofs").collect()}
    assert stored == {"public.a": "identical", "public.b": "different"}


def test_a_view_that_another_session_replaced_is_put_right(shop: Shop) -> None:
    """It keeps the properties by which the check knows it, and shows what no one has proven."""
    shop.build(0x1000)
    shop.publish()
    shop.spark.sql("CREATE OR REPLACE VIEW published.public__a AS SELECT n FROM current.public__a")
    shop.build(0x2000)
    assert shop.seen() == (0x2000, 0x1000)
    shop.publish(a="different", b="different")
    assert shop.seen() == (0x1000, 0x1000)
