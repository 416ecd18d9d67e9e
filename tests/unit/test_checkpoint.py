"""A reading from a checkpoint says of the present what the whole log says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support_states import START, STEP, Played, batch, sequences
from toolkit.rawlog import checkpoint, order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.checkpoint import CurrentReading
from toolkit.rawlog.event import Baseline, Captured, Gap, Kind
from toolkit.rawlog.memory import MemoryReading
from toolkit.rawlog.reading import LogReading
from toolkit.rawlog.states import copied, dropped_tables, table_states, unproven
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn


class Whole(MemoryReading):
    """A reading of the whole log for every question."""

    def current(self) -> CurrentReading:
        """Give the whole log."""
        return self  # type: ignore[return-value]


def whole(config: Config, events: Sequence[Event], head: int) -> Whole:
    return Whole(config.capture_rules, 1, [asdict(event) for event in (*events, batch(head))])


def parted(config: Config, events: Sequence[Event], head: int, cut: int) -> tuple[LogReading, bool]:
    """The same log, read from a checkpoint before event number `cut`, or whole where that does not serve."""
    log = whole(config, events, head)
    carried = checkpoint.from_json(checkpoint.to_json(checkpoint.kept(whole(config, events[:cut], head))))
    later = [asdict(event) for event in events[cut:]]
    tail = [row for row in later if row["kind"] in checkpoint.DECIDING]
    if not checkpoint.serves(carried, tail):
        return log, False
    kinds = checkpoint.by_kind(carried, tail)
    return CurrentReading(log, kinds, lambda: [r for r in later if r["kind"] == Kind.DDL]), True


def said(log: LogReading, proofs: dict[int, Lsn], head: int) -> tuple[Any, ...]:
    """Everything that is asked of the present."""
    checked = {relid: Lsn(head) for relid in proofs}
    return (
        table_states(log, proofs), table_states(log), dropped_tables(log), copied(log), unproven(log, checked),
        log.latest_versions(), log.baselines(),
    )  # fmt: skip


def test_every_checkpoint_of_every_short_sequence_says_what_the_log_says(tmp_path: Path) -> None:
    config, served = Config(root=tmp_path), 0
    for letters in sequences(4):
        played = Played(letters)
        expected = said(whole(config, played.events, played.head), played.proofs, played.head)
        for cut in range(len(played.events) + 1):
            log, used = parted(config, played.events, played.head, cut)
            served += used
            assert said(log, played.proofs, played.head) == expected, (letters, cut)
    assert served > 5000


@pytest.mark.parametrize("letters", ["WGGGGG", "WGGGWGGGG", "WGGGVGGGW", "WRRRRR", "WGGGGPGGGGWGGGG"])
def test_what_decides_nothing_any_more_is_not_kept(tmp_path: Path, letters: str) -> None:
    """Between two baselines a first and a last gap decide; a version under a name is its last one."""
    played = Played(letters)
    found = checkpoint.kept(whole(Config(root=tmp_path), played.events, played.head))
    gaps = [row for row in found if row["kind"] == Kind.GAP]
    intervals = [part for part in letters.replace("V", "").replace("P", "W").split("W") if "G" in part]
    assert len(gaps) == sum(min(2, part.count("G")) for part in intervals)
    assert sum(row["kind"] == Kind.SCHEMA for row in found) == 1 + letters.count("R")


def test_many_changes_of_one_table_cost_what_one_does(tmp_path: Path) -> None:
    played = Played("WG")
    (version, *_) = played.events
    many = [replace(version, schema_id=n, ordinal=n, commit_lsn=START + 100) for n in range(1000)]
    gap = played.events[-1]
    many += [replace(gap, ordinal=n, commit_lsn=START + 200) for n in range(1000)]
    found = checkpoint.kept(whole(Config(root=tmp_path), [*played.events, *many], START + 300))
    assert len(found) == 1 + 1 + 2


def test_the_gap_that_names_what_comes_first_is_kept(tmp_path: Path) -> None:
    """`cdc init` comes before the repair, by the gap that was found last."""
    played = Played("WGGG")
    gaps = [number for number, event in enumerate(played.events) if event.kind == "gap"]
    payload = Gap("off", "cdc repair", Lsn(START + 1000), "cdc init").to_json()
    played.events[gaps[1]] = replace(played.events[gaps[1]], payload=payload)
    config = Config(root=tmp_path)
    log, used = parted(config, played.events, played.head, len(played.events))
    assert used and str(table_states(log)[0].remedy).startswith("cdc init, then ")
    assert table_states(log) == table_states(whole(config, played.events, played.head))  # stale from the first gap


def test_a_late_baseline_before_a_kept_gap_has_the_whole_log_read(tmp_path: Path) -> None:
    """A snapshot may be older than the log: its baseline may divide gaps of which the checkpoint has two."""
    config, played = Config(root=tmp_path), Played("WGGG")
    late = Event(
        batch_id=2, generation=1, **order.made_at(START + 2 * STEP + 4)._asdict(), ordinal=order.BASELINE,
        kind=Kind.BASELINE, relid=1, payload=Baseline(Lsn(START + 2 * STEP + 4)).to_json(),
    )  # fmt: skip
    events = [*played.events, late]
    log, used = parted(config, events, played.head, len(played.events))
    assert not used
    proofs = {1: Lsn(late.end_lsn)}
    assert table_states(log, proofs)[0].from_lsn == START + 3 * STEP  # the second gap, which was not kept


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("now", [Captured.PAUSED, Captured.RESUMED])
def test_a_pause_of_capture_is_known(tmp_path: Path, now: Captured, after: bool) -> None:
    played = Played("WG")
    other = Captured.RESUMED if now == Captured.PAUSED else Captured.PAUSED
    at = order.made_at(played.head)._asdict()
    switches = [
        Event(batch_id=1, generation=1, **at, ordinal=n, kind=Kind.DDL, payload=f'{{"event": "{event}"}}')
        for n, event in enumerate((other, Captured.COMMAND_END, now, Captured.COMMAND_END))
    ]
    events = [*played.events, *switches]
    cut = len(played.events) + 1 if after else len(events)
    log, used = parted(Config(root=tmp_path), events, played.head, cut)
    paused = str(table_states(log)[0].remedy).startswith("cdc ddl resume")
    assert used and paused == (now == Captured.PAUSED)
    assert len(log.rows(Kind.DDL)) == (4 if after else 1)
