"""The applied position of `cdc status`: no table lacks an event up to it, whichever models the last builds ran."""

from __future__ import annotations

import pytest

from tests.dbt.harness import Lake
from tests.dbt.scenario import Source, Table, column
from tests.support_ledger import ledger_of
from toolkit.lake import new_events
from toolkit.ops import status_report
from toolkit.values.lsn import Lsn

pytestmark = [pytest.mark.dbt, pytest.mark.spark]


@pytest.mark.parametrize("remembers", [True, False], ids=["remembered", "forgotten"])
def test_applied_is_what_every_table_has(built: Lake, remembers: bool) -> None:
    """A build that was killed between two tables, or that ran some models, was taken for a build of all."""

    def committed() -> Lsn:
        last = ledger_of(built.config).last()
        assert last is not None
        return last.complete_to

    def applied() -> Lsn | None:
        if not remembers:
            new_events._file(built.config.lake_access).unlink(missing_ok=True)
        return status_report.status(built.config).applied_lsn

    source = Source()
    tables = [Table(300 + n, name, [column(1, "id"), column(2, "v")], [1]) for n, name in enumerate("abcd")]
    for table in tables:
        table.rows = [] if table.name == "d" else [{1: "1", 2: "x"}]
        source.baseline(table, first=True)
    built.append(source)
    assert applied() is None
    built.build(select=("public__a",))
    assert applied() is None  # the others were never built
    built.build()
    first = committed()
    assert applied() == first

    source.begin()
    for table in tables[:2]:  # the others are quiet
        source.update(table, table.rows[0], {2: "y"}, [])
    source.commit()
    built.append(source)
    assert committed() > first and applied() == first
    built.build(select=("public__a",))
    assert applied() == first  # b is not built
    built.build(select=("public__b",), dbt_args=("--exclude", "history__public__b"))
    assert applied() == first  # nor is its history
    built.build()
    assert applied() == committed()
