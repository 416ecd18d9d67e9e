"""Every reader of table states says the same of all short sequences of what can happen to a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.support_states import KNOWN, START, STEP, Played, batch, sequences
from toolkit.capture import stages
from toolkit.history import rows_at_lsn, versions
from toolkit.history.effects import EffectClass
from toolkit.lake import table_states as stored
from toolkit.ops.diagnosis import stale_tables
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Baseline, Gap, Kind
from toolkit.rawlog.memory import MemoryReading
from toolkit.rawlog.plan import Layer, plans
from toolkit.rawlog.reading import WithBatch
from toolkit.rawlog.states import (
    Doubt,
    State,
    copied,
    dropped_tables,
    live_tables,
    not_copied,
    states_at,
    table_states,
    unproven,
    verdicts,
)
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError, NotProven
from toolkit.values.lake_access import LakeAccess
from toolkit.values.lsn import Lsn
from toolkit.values.table import TableVersion


def reading(config: Config, played: Played) -> MemoryReading:
    return MemoryReading(config.capture_rules, 1, [asdict(event) for event in (*played.events, batch(played.head))])


def check_now(log: MemoryReading, played: Played) -> None:
    """`cdc status`, and `ops.tables` of the same reading."""
    found = {state.relid: state for state in table_states(log, played.proofs)}
    rows = {row["relid"]: row for row in stored.rows(log, found.values())}
    gone = {life.relid for life in played.lives if life.dropped and life.phase != "none"}
    assert {version.table.relid for version in dropped_tables(log)} == gone
    assert found.keys() == {life.relid for life in played.lives if not life.dropped}
    assert rows.keys() == found.keys() | gone
    for life in played.lives:
        if life.dropped:
            assert life.relid not in gone or rows[life.relid]["state"] == "dropped"
            continue
        state, row = found[life.relid], rows[life.relid]
        assert state.state == ("ok" if life.phase == "ok" else "stale")
        assert state.from_lsn == (0 if life.phase == "none" else life.stale)
        assert state.repaired_lsn == life.repaired
        assert state.comparable == (life.phase in ("ok", "part", "whole"))
        assert state.remedy == {
            "ok": None, "part": f"cdc check public.{life.name}", "whole": f"cdc check public.{life.name}",
        }.get(life.phase, f"cdc repair public.{life.name}")  # fmt: skip
        assert (row["table_name"], row["state"], row["from_lsn"]) == (state.table, state.state, state.from_lsn)
        assert (row["reason"], row["remedy"]) == (state.reason, state.remedy)


def check_copied(log: MemoryReading, played: Played) -> None:
    """What `cdc init`, its stages, `cdc doctor` and a build say of the tables without a complete copy."""
    live = live_tables(log)
    missing = {life.relid for life in played.lives if life.phase == "none" and not life.dropped}
    assert {table.relid for table in not_copied(log, live)} == missing
    assert copied(log) == {life.relid for life in played.lives if life.phase != "none"}
    stage = stages.snapshot_stage(log, live)
    assert (stage.done, stage.found) == (not missing, f"{len(live) - len(missing)} of {len(live)} tables")
    states = table_states(log, played.proofs)
    said = {diagnosis.what: diagnosis.found for diagnosis in stale_tables(states)}
    assert said.keys() == {f"table {s.table}" for s in states if s.state != State.OK}
    assert {s.relid for s in states if "no complete snapshot" in said.get(f"table {s.table}", "")} == missing


def check_plan(log: MemoryReading, played: Played) -> None:
    """The plan has the tables that were copied, and calls the row versions unverified that the letters leave so."""
    judged = verdicts(log, Lsn(played.head))
    made = {(plan.relid, plan.layer): plan for plan in plans(log, Lsn(played.head))}
    found = {relid: plan for (relid, layer), plan in made.items() if layer == Layer.HISTORY}
    assert found.keys() == {life.relid for life in played.lives if life.phase != "none"}
    for life in played.lives:
        if life.relid not in found:
            continue
        plan, verdict = found[life.relid], judged[life.relid]
        assert plan.doubts == verdict.doubts
        assert plan.incomplete == bool(verdict.gaps)
        complete = max(lsn for lsn, letter, _ in life.phases if letter in "WN" or lsn == life.phases[0][0])
        later = [letter for lsn, letter, _ in life.phases if lsn > complete]
        assert made[life.relid, Layer.CURRENT].incomplete == ("G" in later and not life.dropped)
        assert bool(verdict.unknown) == any(d.copied is None and d.confirmed is None for d in plan.doubts)
        for number, (lsn, letter, phase) in enumerate(life.phases):
            if phase != "none" and letter != "D":
                assert is_unverified(plan.doubts, lsn, None) == life.unverified(number)
                assert is_unverified(plan.doubts, lsn, lsn + STEP) == (phase in ("broken", "part"))


def is_unverified(doubts: Iterable[Doubt], since: int, until: int | None) -> bool:
    """Say whether the macro `cdc_doubtful` marks a row version."""
    return any(
        (until is None or until > doubt.since)
        and (doubt.copied is None or since < doubt.copied)
        and not (
            doubt.part is not None
            and doubt.confirmed is not None
            and since >= doubt.part
            and (until is None or until > doubt.confirmed)
        )
        for doubt in doubts
    )


def check_at(access: LakeAccess, log: MemoryReading, played: Played, lsn: int) -> None:
    """What was known at an LSN: the states at that time, and whether `cdc rows --as-of-lsn` answers."""
    then = {version.table.relid: state for version, state in states_at(log, Lsn(lsn), {})}
    latest = log.latest_versions()
    for life in played.lives:
        before = [(letter, phase) for at, letter, phase in life.phases if at <= lsn]
        letter, phase = before[-1] if before else ("", "none")
        there = letter != "D" and phase != "none"
        assert (life.relid in then) == there
        refused: type[Exception] | None = None
        if phase == "none" or (letter == "D" and phase in KNOWN):
            refused = ConfigError
        elif phase not in KNOWN:
            refused = NotProven
        if there:
            assert then[life.relid].state == ("ok" if refused is None else "stale")
        try:
            rows_at_lsn._require_known(access, log, latest[life.relid].table, Lsn(lsn))  # type: ignore[arg-type]
        except (ConfigError, NotProven) as error:
            assert type(error) is refused, str(error)
        else:
            assert refused is None


def test_all_readers_agree_on_all_short_sequences(tmp_path: Path) -> None:
    config = Config(root=tmp_path)
    phases: Counter[str] = Counter()
    for letters in sequences(5):
        played = Played(letters)
        log = reading(config, played)
        phases[played.lives[-1].phase] += 1
        try:
            check_now(log, played)
            check_plan(log, played)
            if len(letters) < 5:
                check_copied(log, played)
            # As of earlier LSNs four letters are enough: the state at an LSN and one that hides it, twice.
            for lsn in range(START + STEP, played.head + 1, STEP) if len(letters) < 5 else (played.head,):
                check_at(config.lake_access, log, played, lsn)
            life = played.lives[-1]
            if life.phases and life.phases[-1][1] != "V" and life.phase not in ("none", "broken"):
                # A check at the head would note a baseline for exactly the tables with a copied part.
                proofs = {life.relid: Lsn(played.head)}
                assert unproven(log, proofs) == (proofs if life.part else {})
        except AssertionError as error:
            raise AssertionError(f"after {letters!r}") from error
    assert min(phases[phase] for phase in ("none", "ok", "broken", "part", "whole")) > 100, phases


@pytest.mark.parametrize(
    ("letters", "state", "known"),
    [
        ("WG", State.STALE, False),
        ("WGW", State.STALE, True),  # `ops.tables` said ok, `cdc status` stale
        ("WGWV", State.OK, True),
        ("WGP", State.STALE, False),
        ("WGPV", State.OK, True),
        ("P", State.STALE, None),
        ("PV", State.STALE, None),
        ("WGPW", State.STALE, True),
        ("WGWGW", State.STALE, True),
    ],
)
def test_named_sequences(tmp_path: Path, letters: str, state: State, known: bool | None) -> None:
    played = Played(letters)
    log = reading(Config(root=tmp_path), played)
    (now,) = table_states(log, played.proofs)
    then = [found.state == State.OK for _, found in states_at(log, Lsn(played.head), {})]
    assert (now.state, then) == (state, [] if known is None else [known])


def test_the_remedy_names_the_first_of_two_gaps(tmp_path: Path) -> None:
    """It named an LSN below the last one, at which the rows are not known either."""
    log = reading(Config(root=tmp_path), Played("WGG"))
    ((_, state),) = states_at(log, Lsn(START + 3 * STEP), {})
    first = Lsn(START + 2 * STEP)
    assert (state.from_lsn, state.remedy) == (first, f"an LSN below {first}")
    assert states_at(log, Lsn(first - 1), {})[0][1].state == State.OK


def test_a_gap_of_another_generation_does_not_class_a_change(tmp_path: Path) -> None:
    """After a restore the source writes the same LSNs again, and other changes there."""
    place: dict[str, Any] = {"batch_id": 1, "commit_lsn": START + STEP - 1, "ordinal": 5, "end_lsn": START + STEP}
    command = {"event": "ddl_command_end", "tag": "COMMENT", "tables": [], "objects": [{"relid": 1}]}
    log = MemoryReading(
        Config(root=tmp_path).capture_rules,
        1,
        [
            asdict(Event(**place, generation=1, kind="ddl", payload=json.dumps(command))),
            asdict(Event(**place, generation=2, kind="gap", relid=1, payload=Gap("rewritten").to_json())),
        ],
    )
    (found,) = versions.events(log)  # type: ignore[arg-type]
    assert found.effect == EffectClass.NONE


def test_the_versions_of_many_tables_are_parsed_once_for_all_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status asks ten times. With more than 4,096 versions, each time parsed all of them."""
    tables = 6_000
    events = [asdict(event) for relid in range(1, tables + 1) for event in Played("", relid).events]
    parsed: list[int] = []
    parse = TableVersion.from_json

    def counted(data: dict[str, Any]) -> TableVersion:
        parsed.append(data["relid"])
        return parse(data)

    monkeypatch.setattr(TableVersion, "from_json", counted)
    for _ in range(3):
        found = MemoryReading(Config(root=tmp_path).capture_rules, 1, events).schema_versions()
        assert [version.table.relid for version in found] == [*range(1, tables + 1)]
    assert len(parsed) <= tables


def test_events_become_objects_once_for_all_questions_to_a_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run over 2,000 tables asked for its baselines thirty times, and made 60,000 objects of them."""
    played = [event for relid in range(1, 6) for event in Played("W", relid).events]
    events = [asdict(event) for event in (*played, batch(START + STEP))]
    made: list[str | None] = []
    read = Baseline.from_json

    def counted(payload: str | None) -> Baseline:
        made.append(payload)
        return read(payload)

    monkeypatch.setattr(Baseline, "from_json", counted)
    log = MemoryReading(Config(root=tmp_path).capture_rules, 1, events)
    assert copied(log) == copied(log) == set(range(1, 6)) and log.latest_versions() == log.latest_versions()
    assert len(log.baselines()) == len(log.current().baselines()) == 5
    assert len(made) == 10  # of the whole log and of the present
    # With the events of a batch that is not committed yet, the answer is another one.
    (of_next,) = (event for event in Played("W", 9).events if event.kind == Kind.BASELINE)
    assert len(WithBatch(log, [of_next]).baselines()) == 6 and len(log.baselines()) == 5
