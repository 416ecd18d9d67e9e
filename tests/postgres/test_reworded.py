"""No code reads prose: with every message reworded, tests that assert states find the same states."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.reworded import reword
from tests.trap_world import PAIR, World
from toolkit.source import ddl_switch as switch
from toolkit.source import preflight, slot
from toolkit.source.peek import peek, position_said
from toolkit.values.errors import CdcError, PreflightFailed, SlotError, SlotRefused
from toolkit.values.lsn import Lsn

ROOT = Path(__file__).resolve().parents[2]
PLAN, RECORDED = "tests/unit/test_decode_plan.py", "tests/unit/test_decode_recorded.py"
BEHAVIOUR = (
    *(
        f"tests/unit/test_{name}.py"
        for name in (
            "cause", "compare", "decode_changelog", "decode_plan", "decode_recorded", "evolve", "explain", "history",
            "macros", "plan", "project", "sqltext", "states", "types_table",
        )
    ),
    "tests/postgres/test_reworded.py::test_states_of_what_goes_wrong[pg16]",
)  # fmt: skip
#: They assert words, or take long.
WORDS = (
    "tests/unit/test_compare.py::test_a_difference_without_an_event_is_a_gap_from_where_it_may_have_begun",
    f"{PLAN}::test_only_genuine_ddl_messages_change_versions",
    f"{PLAN}::test_an_unreadable_genuine_message_turns_everything_stale",
    f"{PLAN}::test_rows_of_changed_columns_without_relation_are_quarantined",
    f"{PLAN}::test_a_table_that_joins_without_birth_is_stale",
    f"{PLAN}::test_a_rewrite_without_the_end_of_its_command_is_stale",
    f"{RECORDED}::test_only_silent_changes_make_gaps",
    f"{RECORDED}::test_any_split_gives_the_same_events",
    f"{RECORDED}::test_a_drain_cut_anywhere_continues_with_the_same_events",
)


@pytest.mark.unit
def test_a_rule_that_reads_prose_is_found_by_rewording() -> None:
    text = """
class Refused(Exception): ...
def reason(n): return f"the table {n} was dropped at the source"
def stale(n): return "was dropped" in reason(n)
def refuse(): raise Refused("the slot is in use by pid 7")
def known(kind): return {"timestamp without time zone": 1}[kind]
"""
    plain: dict[str, Any] = {}
    exec(text, plain)
    reworded: dict[str, Any] = {}
    exec(compile(reword(text), "reworded", "exec"), reworded)
    assert (plain["stale"](1), reworded["stale"](1)) == (True, False)
    assert reworded["reason"](1) != plain["reason"](1)
    with pytest.raises(Exception, match="pid") as one:
        plain["refuse"]()
    with pytest.raises(reworded["Refused"]) as two:
        reworded["refuse"]()
    assert str(one.value) != str(two.value)
    assert reworded["known"]("timestamp without time zone") == 1
    statement = "conn.execute('select a from b as c where d')"
    assert "select a from b as c" in repr(compile(reword(statement, everywhere=False), "s", "exec").co_consts)


@pytest.mark.postgres
def test_states_of_what_goes_wrong(world: World, tmp_path: Path) -> None:
    log = world.start(*PAIR)
    log.drain()
    assert world.stale().keys() == set()
    world.sql("alter table t alter v type text using upper(v)")
    world.sql("select pg_logical_emit_message(true, 'cdc.beacon', 'forged')")
    log.drain()
    assert world.stale().keys() == {"public.t"}
    refused_messages = [m for m in log.reading().messages() if m.payload.refused]  # type: ignore[union-attr]
    assert [m.payload.prefix for m in refused_messages] == ["cdc.beacon"]  # type: ignore[union-attr]
    log.repair(*world.stale())
    log.drain()
    assert not world.stale()
    switch.pause(world.config.source)
    log.drain()
    assert log.states()["public.t"].remedy != "cdc repair public.t"  # first capture must be resumed
    switch.resume(world.config.source)
    world.bypass()
    log.drain()
    log.repair(*world.stale())
    log.drain()
    world.exact("t")
    assert {gap.payload.until is None for gap in log.reading().gaps()} == {True, False}
    world.sql("insert into t (id) values (9)")
    upto = slot.flush_lsn(log.conn)
    others: list[tuple[dict[str, str], type[CdcError]]] = [({"slot": "missing"}, SlotError)]
    if log.conn.info.server_version < 180000:  # 18 warns in its log and sends nothing
        others.append(({"publication": "nothing"}, PreflightFailed))
    for update, kind in others:
        missing = world.config.model_copy(update={"source": world.config.source.model_copy(update=update)})
        with pytest.raises(kind):
            peek(log.conn, missing.source, upto=upto, max_changes=None, directory=tmp_path)
    log.conn.execute("select pg_catalog.pg_create_physical_replication_slot('other')")
    other = world.config.model_copy(update={"source": world.config.source.model_copy(update={"slot": "other"})})
    with pytest.raises(SlotRefused) as refused:
        slot.require_slot(log.conn, other.source)
    found = [f for f in preflight.preflight(log.conn, other.capture_rules, ddl=other.ddl) if f.level == "error"]
    assert [(f.found, f.remedy) for f in found] == [(refused.value.found, refused.value.remedy)]


@pytest.mark.postgres
def test_rewording_every_message_changes_no_behaviour() -> None:
    """The tests run in a process of their own, whose toolkit says everything in other words."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.reworded", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "unit or postgres", *(f"--deselect={name}" for name in WORDS), *BEHAVIOUR],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 100


@pytest.mark.unit
@pytest.mark.parametrize(
    "line",
    [
        'slot "cdc", output plugin "pgoutput", in the change callback, associated LSN 1/16B3748',
        "Slot »cdc«, Ausgabe-Plugin »pgoutput«, im Callback change, zugehörige LSN 1/16B3748",
        "slot « cdc », plugin de sortie « pgoutput », dans la fonction d'appel change, associée au LSN 1/16B3748",
        'スロット"cdc", 出力プラグイン"pgoutput", changeコールバック, 関連LSN 1/16B3748',
    ],
)
def test_the_position_of_an_unreadable_change_is_found_in_any_language(line: str) -> None:
    context = f'PL/pgSQL function public.f("cdc") line 1/2 at RETURN\n{line}\nSQL statement "copy (select 1/2) to x"'
    assert position_said(context, "cdc") == Lsn.parse("1/16B3748")
    assert position_said(context, "other") is None


@pytest.mark.unit
@pytest.mark.parametrize("context", [None, "", 'slot "cdc", output plugin "pgoutput", in the begin callback'])
def test_no_position_is_no_position(context: str | None) -> None:
    assert position_said(context, "cdc") is None
