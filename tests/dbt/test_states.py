"""`ops.tables` and `_cdc_doubtful`, as dbt builds them, on many short sequences at once: one table for each."""

from __future__ import annotations

import contextlib
import io
from datetime import UTC, datetime

import pytest

from tests.dbt.harness import Lake
from tests.support_ledger import ledger_of
from tests.support_states import START, STEP, Played, batch, sequences
from toolkit.build import models
from toolkit.lake import check_results, plans, session, table_states
from toolkit.lake.proofs import proven
from toolkit.ops.table_results import checked_tables
from toolkit.rawlog import states
from toolkit.rawlog.arrow import Event, to_arrow

pytestmark = [pytest.mark.spark, pytest.mark.dbt]

#: Of each table: its row versions of one step, and those that still exist, with what `history` calls them.
_DOUBTS = """
{{ config(materialized='table', schema='ops') }}
{%- if not execute %}select 1{% else %}
{%- for relid, versions in var('versions').items() %}
{% set plan = cdc_plan(relid | int, 'history') -%}
select {{ relid }} as relid, from_lsn, to_lsn, ({{ cdc_doubtful(plan) }}) as doubtful
from (values {{ versions }}) as v(from_lsn, to_lsn)
{% if not loop.last %}union all{% endif %}
{%- endfor %}
{%- endif %}
"""


def dbt(lake: Lake, *names: str) -> None:
    from dbt.cli.main import dbtRunner

    project = str(lake.config.dbt_project.folder)
    arguments = ["run", "--select", *names, "--project-dir", project, "--profiles-dir", project]
    with contextlib.redirect_stdout(io.StringIO()):
        outcome = dbtRunner().invoke([*arguments, "--quiet", "--log-level-file", "none"])
    assert outcome.success, outcome.exception or outcome.result


def append(lake: Lake, events: list[Event]) -> None:
    frame = lake.spark.createDataFrame(to_arrow(events), lake.spark.table("raw.events").schema)
    frame.writeTo("raw.events").append()


def test_ops_tables_and_history_say_what_the_log_says(built: Lake) -> None:
    """`ops.tables` said ok of a table that was repaired and not checked, and `cdc status` said stale."""
    chosen = [
        *sequences(2),
        *("W" + rest for rest in sequences(3, "WPGV")),
        "WGPRV",
        "WGRWD",
        "WGDN",
        "WDNGP",
        "WGWGPV",
    ]
    played = {relid: Played(letters, relid) for relid, letters in enumerate(chosen, 1000)}
    head = max(one.head for one in played.values())
    append(built, [*(event for one in played.values() for event in one.events), batch(head)])
    check_results.ensure(built.config.lake_access, session.own_session(built.config.lake_access))
    empty = dict.fromkeys(check_results.columns("ops.published"))
    proofs = {relid: lsn for one in played.values() for relid, lsn in one.proofs.items()}
    rows = [
        empty | {"relid": relid, "full_lsn": int(lsn), "tag": "proven_g1_x", "proven_at": datetime.now(UTC)}
        for relid, lsn in proofs.items()
    ]
    check_results.write(built.config.lake_access, "ops.published", rows, overwrite=True)
    assert proven(built.config.lake_access, ledger_of(built.config)) == proofs
    table_states.write(ledger_of(built.config))
    plans.write(ledger_of(built.config))
    models.write(built.config.lake_access, [], dbt=built.config.dbt_project)
    lives = {life.relid: life for one in played.values() for life in one.lives}
    versions = {
        relid: ", ".join(
            f"({lsn}L, {until})"
            for number, (lsn, _, _) in enumerate(life.phases)
            for until in (f"{lsn + STEP}L", "cast(null as bigint)")
            if life.phases[number][2] != "none"
        )
        for relid, life in lives.items()
        if any(phase != "none" for _, _, phase in life.phases) and not life.dropped
    }
    model = _DOUBTS.replace("var('versions')", repr(versions))
    (built.config.dbt_project.folder / "models" / "ops" / "doubts.sql").write_text(model, encoding="utf-8")
    dbt(built, "tables", "doubts")

    shown = {row["relid"]: row for row in built.spark.table("ops.tables").collect()}
    # What `cdc status` shows of the lake; without a source it says of each table that nothing newer can be drained.
    found = {state.relid: state for state in checked_tables(ledger_of(built.config))[0]}
    for relid, life in lives.items():
        if life.dropped:
            assert relid not in shown or shown[relid]["state"] == "dropped"
            continue
        assert shown[relid]["state"] == ("ok" if life.phase == "ok" else "stale"), life
        said = found[relid]
        assert [shown[relid][name] for name in ("table_name", "state", "reason", "from_lsn", "remedy")] == [
            said.table, said.state, said.reason, said.from_lsn, said.remedy,
        ], life  # fmt: skip
    assert len(found) > 100 and {row["state"] for row in shown.values()} == {"ok", "stale", "dropped"}

    doubts = built.spark.table("ops.doubts").collect()
    for row in doubts:
        life = lives[row["relid"]]
        number = next(n for n, (lsn, _, _) in enumerate(life.phases) if lsn == row["from_lsn"])
        open_ended = row["to_lsn"] is None
        expected = life.unverified(number) if open_ended else life.phases[number][2] in ("broken", "part")
        assert row["doubtful"] == expected, (life, row)
    assert len(doubts) > 400 and {row["doubtful"] for row in doubts} == {True, False}
    ledger = ledger_of(built.config)
    assert {v.table.relid for v in states.dropped_tables(ledger)} == {
        relid for relid, row in shown.items() if row["state"] == "dropped"
    }

    # A batch that was committed by a command that was killed: no table is called ok before its states are written.
    append(built, [batch(head + START, 2)])
    assert {row["state"] for row in built.spark.table("ops.tables").collect()} == {"stale", "dropped"}
    table_states.write(ledger_of(built.config))
    assert {row["relid"]: row["state"] for row in built.spark.table("ops.tables").collect()} == {
        relid: row["state"] for relid, row in shown.items()
    }

    # A check that found a difference withholds the states until they are written again.
    table_states.withhold(built.config.lake_access)
    assert {row["state"] for row in built.spark.table("ops.tables").collect()} == {"stale", "dropped"}
    table_states.write(ledger_of(built.config))
    assert {row["state"] for row in built.spark.table("ops.tables").collect()} == {"ok", "stale", "dropped"}
