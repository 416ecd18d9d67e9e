"""Short histories of a few statements each: the log has what SELECT shows, or the table is stale by name.

All of them are played in one database. `tests/histories` has them, `tests/support_histories.py` the ways to capture.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.histories.all import ALL, MORE, NAMED
from tests.support_histories import AROUND, WAYS, Play
from toolkit.demo.server import EmbeddedServer
from toolkit.rawlog import states
from toolkit.values.config import Config

pytestmark = pytest.mark.postgres

_DEFAULT = [("pg16", "all", "alone"), ("pg16", "log", "alone")]
_LONG = [
    *(("pg16", way, around) for way in WAYS for around in AROUND),
    *((server, way, "alone") for server in ("pg15", "pg18") for way in WAYS),
]


@pytest.mark.parametrize(
    ("pg", "way", "around"),
    [*_DEFAULT, *(pytest.param(*case, marks=pytest.mark.long) for case in _LONG if case not in _DEFAULT)],
    indirect=["pg"],
)
def test_every_table_of_a_history_is_exact_or_stale_by_name(
    pg: EmbeddedServer, source: Config, tmp_path: Path, way: str, around: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Play.of(ALL, source, tmp_path, way, around) as play:
        play.run()
    with capsys.disabled():
        print(f"\nhistories by {way}, {around}, on {pg.major}: {json.dumps(play.counts)}")
    assert not play.findings, f"by {way}, {around}, on {pg.major}:\n" + "\n".join(play.findings)
    assert play.counts["exact"] > 4 * play.counts["stale"] > 0  # else nothing was proven


@pytest.mark.long
@pytest.mark.parametrize("pg", ["pg15", "pg16", "pg18"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_every_table_is_exact_or_stale_by_name_between_the_statements_too(
    pg: EmbeddedServer, source: Config, tmp_path: Path, way: str
) -> None:
    with Play.of(MORE, source, tmp_path, way) as play:
        play.between = way != "ticks"  # which are exact at ticks only
        play.run()
    assert not play.findings, f"by {way} on {pg.major}:\n" + "\n".join(play.findings)
    assert play.counts["exact"] > 2 * play.counts["stale"] > 0


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_the_text_of_regclass_is_stale_after_its_copy(source: Config, tmp_path: Path) -> None:
    """The limit that docs/reference/types.md states: no event says that the named table has another name."""
    played = [history for history in ALL if "regclass prints" in history.name]
    with Play.of(played, source, tmp_path, "all") as play:
        play.run()
        reasons = {s.table: s.reason for s in states.table_states(play.log.reading()) if s.state != states.State.OK}
    assert not play.findings, "\n".join(play.findings)
    assert len(played) == 5 and sorted(reasons) == [f"h_{number}.t" for number in range(5)]
    assert all("changes with the objects it names" in (reason or "") for reason in reasons.values())


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_ddl_in_the_script_of_an_extension_is_captured(source: Config, tmp_path: Path) -> None:
    played = [history for history in ALL if "scripts of an extension" in history.name]
    with Play.of(played, source, tmp_path, "all") as play:
        play.run()
    assert not play.findings, "\n".join(play.findings)
    assert not play.counts["refused"] and not play.counts["stale"]


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_ddl_of_a_table_in_a_schema_of_the_server_or_of_capture_is_captured(source: Config, tmp_path: Path) -> None:
    """Such a table is in no schema that is published: the server sends nothing of it."""
    played = [history for history in ALL if re.search("is in (information_schema|the schema of capture)", history.name)]
    with Play.of(played, source, tmp_path, "schemas") as play:
        play.run()
        stale = {s.table: s.reason for s in states.table_states(play.log.reading()) if s.state != states.State.OK}
    assert not play.findings, "\n".join(play.findings)
    assert len(played) == 3 and stale == {"h_0.t": "left the publication", "h_1.t": "left the publication"}


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_partition_dropped_in_the_schema_of_capture_takes_its_rows_with_it(source: Config, tmp_path: Path) -> None:
    played = [NAMED["a partition comes and goes in the schema of capture"]]
    with Play.of(played, source, tmp_path, "roots") as play:
        play.run()
    assert not play.findings, "\n".join(play.findings)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
@pytest.mark.parametrize("way", ["all", "log"])
def test_a_lost_event_is_found(source: Config, tmp_path: Path, way: str) -> None:
    """Else the histories prove nothing. The log loses a change, and then what makes a table stale."""
    # A later update of the row would bring what the reason stands for.
    played = [
        NAMED["two columns exchange their names"],
        replace(NAMED["timestamp becomes timestamptz in UTC"], probe=()),
    ]
    with Play.of(played, source, tmp_path, way) as play:
        play.run()
        assert not play.findings, "\n".join(play.findings)
        log, at = play.log, play.points[-1][1]
        relids, whole = {version.table.identifier: relid for relid, version in log.versions.items()}, log.events
        for table, kind in (("h_0.t", "row"), ("h_1.t", "gap")):
            lost = [e for e in whole if e["relid"] == relids[table] and e["kind"] == kind and e["op"] != "R"]
            log.events = [e for e in whole if e not in (lost if kind == "gap" else lost[-1:])]
            play.judge("with a fault", at)
            assert {finding.split(": ")[1].split()[0] for finding in play.findings} == {table}, play.findings
            play.findings.clear()
        log.events = whole
        play.judge("as it was", at)
        assert not play.findings


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_table_that_is_lost_whole_is_found(source: Config, tmp_path: Path) -> None:
    with Play.of([NAMED["columns of a domain with a default"]], source, tmp_path, "all") as play:
        play.run()
        assert not play.findings, "\n".join(play.findings)
        (relid,) = (relid for relid, version in play.log.versions.items() if version.table.identifier == "h_0.t")
        play.log.events = [event for event in play.log.events if event["relid"] != relid]
        play.judge("with a fault", play.points[-1][1])
        assert [finding.partition(": ")[2] for finding in play.findings] == ["h_0.t is neither captured nor listed"]
