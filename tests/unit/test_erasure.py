"""An erased log reads as if the copy after the erasure were the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support_states import START, STEP, Played, batch, sequences
from tests.unit import test_checkpoint
from toolkit.rawlog import erasure, order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Kind
from toolkit.rawlog.memory import MemoryReading
from toolkit.rawlog.plan import plans
from toolkit.rawlog.states import copied, dropped_tables, states_at, table_states, unproven
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn


def erased(before: Event) -> Event:
    """The erasure of everything that the table of an event has before it."""
    return replace(before, ordinal=order.ERASURE, kind=Kind.ERASED, payload=None, batch_id=2)


def limits(played: Played) -> list[Event]:
    """The events before which a table can be erased: its complete copies, and its end."""
    copies = [e for e in played.events if e.kind == Kind.BASELINE and '"all"' in (e.payload or "")]
    ends = [e for e in played.events if e.kind == Kind.SCHEMA and '"dropped": true' in (e.payload or "")]
    return [e for e in (*copies, *ends) if e.ordinal != order.BIRTH]


def reading(config: Config, events: Sequence[Event], head: int) -> MemoryReading:
    return MemoryReading(config.capture_rules, 1, [asdict(event) for event in (*events, batch(head, 2))])


def said(log: MemoryReading, played: Played, at: int) -> tuple[Any, ...]:
    """What is said of the present, and of every LSN from `at` on."""
    then = [states_at(log, Lsn(lsn), {}) for lsn in range(at, played.head + 1, STEP)]
    made = [list(plans(log, Lsn(lsn))) for lsn in range(at, played.head + 1, STEP)]
    now = (table_states(log, played.proofs), dropped_tables(log), copied(log), unproven(log, played.proofs))
    return *now, log.baselines(), log.gaps(), log.truncates(), log.latest_versions(), then, made


def test_an_erased_log_reads_as_one_that_begins_with_the_copy(tmp_path: Path) -> None:
    config, tried = Config(root=tmp_path), 0
    for letters in sequences(4):
        played = Played(letters)
        for limit in limits(played):
            tried += 1
            place = order.position(limit)
            events = [*played.events, erased(limit)]
            left = [
                e for e in events
                if e.kind != Kind.BASELINE or e.relid != limit.relid or order.position(e) >= place
            ]  # fmt: skip
            log = reading(config, events, played.head)
            assert said(log, played, limit.end_lsn) == said(
                reading(config, left, played.head), played, limit.end_lsn
            ), (letters, limit)
            whole = test_checkpoint.whole(config, events, played.head)
            later, used = test_checkpoint.parted(config, events, played.head, len(played.events))
            assert used, "a checkpoint from before the erasure does not serve"
            proofs = played.proofs
            assert test_checkpoint.said(later, proofs, played.head) == test_checkpoint.said(whole, proofs, played.head)
            condition = erasure.condition(log)
            assert condition is not None and f"relid = {limit.relid} and" in condition
    assert tried > 500


@pytest.mark.parametrize(("letters", "copies"), [("WWV", 1), ("WGWV", 1), ("WGWVWV", 1), ("WGWVWV", 2)])
def test_an_lsn_before_the_copy_is_refused_by_name(tmp_path: Path, letters: str, copies: int) -> None:
    """A table that was captured and is erased is not left out of an as-of without a word."""
    played = Played(letters)
    limit = limits(played)[copies]
    log = reading(Config(root=tmp_path), [*played.events, erased(limit)], played.head)
    for lsn in range(START + STEP, played.head + 1, STEP):
        ((_, state),) = states_at(log, Lsn(lsn), {})
        if lsn < limit.end_lsn:
            assert state.reason == f"its rows before {Lsn(limit.end_lsn)} were erased"
            assert (state.state, state.remedy) == ("stale", f"an LSN from {Lsn(limit.end_lsn)} on")
        else:
            assert "erased" not in (state.reason or "")


def test_a_table_that_was_never_captured_is_not_called_erased(tmp_path: Path) -> None:
    log = reading(Config(root=tmp_path), Played("G").events, START + STEP)
    assert states_at(log, Lsn(START + STEP), {}) == () and erasure.condition(log) is None


def test_the_same_relid_of_another_generation_stays(tmp_path: Path) -> None:
    """After a restore the same number may be of another table; only tables of the same name are erased with it."""
    before, after = Played("WG"), Played("WWV")
    mine = [replace(e, generation=2) for e in after.events]
    other = [replace(e, payload=(e.payload or "").replace('"t1"', '"other"')) for e in before.events]
    limit = next(e for e in reversed(mine) if e.kind == Kind.BASELINE)
    config = Config(root=tmp_path)
    for events, named in ((before.events, True), (other, False)):
        log = reading(config, [*events, *mine, erased(limit)], after.head)
        assert ("generation = 1 and relid in (1)" in (erasure.condition(log) or "")) == named
        assert sum(baseline.generation == 1 for baseline in log.baselines()) == 1
