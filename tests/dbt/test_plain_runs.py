"""A plain `dbt run` builds what `cdc build` would, or nothing, whatever happened since the last build."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dbt.harness import Lake
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_models import check_current, check_history
from tests.dbt.test_rebuild import plain_run
from tests.support_ledger import ledger_of
from toolkit.build import schema_changes
from toolkit.rawlog.arrow import to_arrow

pytestmark = [pytest.mark.dbt, pytest.mark.spark]


def _statuses(outcome: Any) -> set[str]:
    return {str(result.status) for result in outcome.result.results}


def _append_all(built: Lake, source: Source, batches: int) -> None:
    """Append many batches at once."""
    events = [event for _ in range(batches) for event in source.batch()]
    frame = built.spark.createDataFrame(to_arrow(events), built.spark.table("raw.events").schema)
    frame.writeTo("raw.events").append()


@pytest.mark.parametrize("later", [False, True])
def test_a_build_that_ended_at_a_ddl_many_batches_ago_is_continued(built: Lake, later: bool) -> None:
    """A plain run missed what was more than 50 batches old: changes, or that values were left out as unchanged."""
    source = Source()
    table = Table(500, "big", [column(1, "id", "bigint", not_null=True), column(2, "v"), column(3, "w")], [1])
    table.rows = [{1: str(n), 2: "x", 3: "large"} for n in range(3)]
    source.baseline(table, first=True)
    built.append(source)
    built.build()
    source.begin()
    table.columns = [c | {"name": "renamed"} if c["attnum"] == 2 else c for c in table.columns]
    source.schema(table)
    source.commit()
    built.append(source)
    source.begin()
    source.update(table, table.rows[0], {2: "y"}, [3])
    source.update(table, table.rows[1], {2: "y"}, [3])
    source.commit()
    _append_all(built, source, 60)
    assert schema_changes.evolve(built.config.lake_access, ledger_of(built.config)) == ()  # and the runner is killed
    if later:
        source.begin()
        source.update(table, table.rows[1], {2: "z", 3: "other"}, [])
        source.commit()
    built.append(source)
    assert _statuses(plain_run(built, "current", "history")) <= {"success", "skipped"}
    check_current(built, source, [table])
    check_history(built, source, table)
