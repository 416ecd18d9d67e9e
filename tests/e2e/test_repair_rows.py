"""Rows that the log has wrong are repaired one by one, by the commands that a check prints; no other row is touched."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from tests import commands
from tests.support_ledger import lake_of, ledger_of
from tests.support_postgres import fresh_database
from toolkit.cli import frame, main
from toolkit.demo.server import EmbeddedServer
from toolkit.history import rows_at_lsn
from toolkit.lake import proofs, session
from toolkit.ops import status_report
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.rawlog.states import states_at
from toolkit.values.config import Config
from toolkit.values.errors import NotProven
from toolkit.values.resources import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

ODD = 'O\'Brien \\ "x",\t{\n} $HOME `id` \U0001f600'


@pytest.fixture
def config(pg16: EmbeddedServer, lake: Config) -> Iterator[Config]:
    with fresh_database(pg16) as conninfo:
        shutil.copytree(ROOT / "dbt_project", lake.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs"))
        config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": conninfo})})
        with psycopg.connect(conninfo, autocommit=True) as conn:
            conn.execute("create table public.item (id bigint primary key, name text, body text)")
            conn.execute("alter table public.item alter body set storage external")
            conn.execute("insert into public.item select i, 'n' || i, repeat('b', 3000) from generate_series(1, 50) i")
            conn.execute('create table public."Odd" (n int, tag text, v numeric(8,2), primary key (tag, n))')
            conn.execute('insert into public."Odd" select n, t, n from unnest(%s::text[]) t, generate_series(1, 3) n',
                         [[ODD, "", "plain"]])  # fmt: skip
            conn.execute("create table public.bag (v text)")
            conn.execute("alter table public.bag replica identity full")
            conn.execute("insert into public.bag values ('a'), ('b')")
            commands.init(config)
            conn.execute("delete from public.item where id = 7")
            conn.execute("update public.item set name = 'new' where id in (10, 11)")  # their bodies are not sent again
        yield config


def _check(config: Config) -> CheckReport:
    return commands.check(config)


def _run(config: Config, command: str | None) -> Any:
    """The command as the report prints it, by way of a shell's rules."""
    name, *arguments = shlex.split(command or "")
    assert name == "cdc"
    file = config.root / "cdc.toml"
    file.write_text(f"[source]\nconninfo = {json.dumps(config.source.conninfo)}\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "_stop_spark", lambda **_: None)
        return CliRunner().invoke(main, arguments, env={"CDC_CONFIG": str(file)})


def _by_name(report: CheckReport) -> dict[str, TableCheck]:
    return {t.table: t for t in report.tables}


def test_the_printed_commands_repair_the_named_rows_and_no_others(config: Config) -> None:
    first = _check(config)
    assert first.green
    spark = session.own_session(config.lake_access)
    relids = {v.table.name: relid for relid, v in ledger_of(config).latest_versions().items()}
    item = f"kind = 'row' AND relid = {relids['item']}"
    spark.sql(f"DELETE FROM raw.events WHERE {item} AND op = 'R' AND new[0] = '5'")  # a lost row
    spark.sql(f"UPDATE raw.events SET new = array(new[0], 'altered', new[2]) WHERE {item} AND new[0] = '6'")
    spark.sql(f"DELETE FROM raw.events WHERE {item} AND op = 'D'")  # 7 is back
    spark.sql(
        f"UPDATE raw.events SET new = array(if(new[0] = '8', '9', '8'), new[1], new[2])"
        f" WHERE {item} AND new[0] IN ('8', '9')"
    )
    spark.sql(f"DELETE FROM raw.events WHERE {item} AND op = 'U' AND new[0] = '10'")  # a lost update
    spark.sql(f"DELETE FROM raw.events WHERE {item} AND op = 'R' AND new[0] = '11'")  # and what one rests on
    odd = f"kind = 'row' AND relid = {relids['Odd']}"
    spark.sql(f"DELETE FROM raw.events WHERE {odd} AND new[0] = '2' AND new[1] <> 'plain'")
    spark.sql(
        f"UPDATE raw.events SET new = array(new[0], 'strange', new[2]) WHERE {odd} AND new[0] = '3' AND new[1] = ''"
    )
    spark.sql(f"DELETE FROM raw.events WHERE kind = 'row' AND relid = {relids['bag']} AND new[0] = 'a'")
    commands.build(config, dbt_args=("--full-refresh",))

    red = _check(config)
    found = _by_name(red)
    kinds = {name: {s.cause.kind for s in t.samples if s.cause is not None} for name, t in found.items()}
    assert set(map(frozenset, kinds.values())) == {frozenset({"capture"})}
    assert {name: t.remedy for name, t in found.items()} == {
        "public.item": "cdc repair public.item --differing",
        'public."Odd"': "cdc repair 'public.\"Odd\"' --differing",
        "public.bag": "cdc repair public.bag",
    }
    keys = {dict(s.key)["id"]: (s.kind, s.cause and s.cause.remedy) for s in found["public.item"].samples}
    assert keys == {
        n: (kind, f'cdc repair public.item --rows \'{{"id": "{n}"}}\'')
        for n, kind in {"5": "removed", "7": "added", **dict.fromkeys(("6", "8", "9", "10", "11"), "modified")}.items()
    }
    # Not by its changes alone: what they make of it is what the check has found to be wrong.
    assert first.lsn and red.lsn
    assert {s.reason and s.reason.partition(" that ")[0] for s in commands.build(config, as_of=red.lsn).stale} == {
        f"a check found at {red.lsn}"
    }
    with pytest.raises(NotProven, match="last known to be right at"):
        rows_at_lsn.rows(lake_of(config), "public.item", red.lsn, {"id": "6"})
    assert rows_at_lsn.rows(lake_of(config), "public.item", first.lsn, {"id": "6"})
    current = "SELECT id, _cdc_from_lsn AS lsn, name FROM current.public__item"
    before = {row["id"]: row for row in spark.sql(current).collect()}

    assert _run(config, found["public.item"].remedy).exit_code == 0
    samples = found['public."Odd"'].samples
    assert sorted(s.kind for s in samples) == ["added", "removed", "removed", "removed"]
    for sample in samples[1:]:
        assert sample.cause is not None
        assert _run(config, sample.cause.remedy).exit_code == 0
    assert _run(config, found["public.bag"].remedy).exit_code == 0
    put = spark.sql(
        f"SELECT op, coalesce(new, old)[0] FROM raw.events WHERE {item} AND origin = 'snapshot' AND op <> 'R'"
    )
    wanted = [*(("D", n) for n in keys), *(("U", n) for n in keys if n != "7")]
    assert sorted(map(tuple, put.collect())) == sorted(wanted)
    assert {row["status"] for row in proofs.proofs_by_relid(ledger_of(config)).values()} == {
        "different"
    }  # nothing is green by a repair

    left = _by_name(_check(config))
    assert {name: t.status for name, t in left.items()} == {
        "public.item": "identical", "public.bag": "identical", 'public."Odd"': "different",
    }  # fmt: skip
    (sample,) = left['public."Odd"'].samples  # the one that was not named, and nothing else
    assert sample.key == samples[0].key
    assert sample.cause is not None
    assert _run(config, sample.cause.remedy).exit_code == 0
    repaired = _check(config)
    assert repaired.green, repaired.to_dict()
    assert {t.state for t in status_report.status(config).tables} == {"ok"}
    # When the log went wrong no one knows: behind the last proof, and until the rows were copied again.
    assert first.lsn and red.lsn and repaired.lsn and first.lsn < red.lsn
    lsns = (first.lsn, red.lsn, repaired.lsn)
    known = [{s.state for _, s in states_at(ledger_of(config), lsn, {})} for lsn in lsns]
    assert known == [{"ok"}, {"stale"}, {"ok"}]

    after = {row["id"]: row for row in spark.sql(current).collect()}
    assert {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)} == {5, 6, 7, 8, 9, 10, 11}
    assert (after[6]["name"], after[8]["name"], after[9]["name"], after[10]["name"]) == ("n6", "n8", "n9", "new")
    (lsn,) = {after[n]["lsn"] for n in (5, 6, 8, 9, 10, 11)}
    # What was known before stays as it was known.
    history = spark.sql("SELECT * FROM history.public__item WHERE id IN (6, 7) ORDER BY id, _cdc_from_lsn").collect()
    assert [(r["id"], r["name"], r["_cdc_to_lsn"]) for r in history] == [
        (6, "altered", lsn), (6, "n6", None), (7, "n7", lsn),
    ]  # fmt: skip
    # Nothing differs any more.
    done = _run(config, "cdc repair public.item --differing")
    assert (done.exit_code, "its last check says identical" in done.stderr) == (2, True)
