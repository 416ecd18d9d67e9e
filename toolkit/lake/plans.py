"""Keep the plans that `toolkit.rawlog.plan` makes in `ops.plans`, from which dbt reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from toolkit.lake import check_results, targets
from toolkit.lake.tables import PLANS
from toolkit.rawlog.plan import plans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.targets import Found
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.rawlog.plan import Layer, TablePlan
    from toolkit.rawlog.store import LogReader
    from toolkit.values.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a dbt run: its plan, and what it finds."""

    plan: TablePlan
    found: Found


#: Temporary view with the plans of one dbt run and the position that they are for.
RUN_VIEW = "cdc_plans"


def write(ledger: LogReader) -> None:
    """Write the plans of all tables at the newest batch, if any plan differs from the stored one. Needs no JVM."""
    check_results.replace_rows(ledger.config, PLANS, rows(ledger))


def rows(ledger: LogReader, upto: Lsn | None = None) -> list[dict[str, Any]]:
    """Give the rows of `ops.plans`, at the newest batch or at an earlier LSN."""
    last = ledger.last()
    if last is None:
        return []
    end = last.complete_to if upto is None else upto
    return [_row(last, plan, end) for plan in plans(ledger, end)]


def _row(last: BatchRecord, plan: TablePlan, upto: Lsn) -> dict[str, Any]:
    at = {"generation": last.generation, "batch_id": last.batch_id, "upto": int(upto)}
    return {"layer": str(plan.layer), "relid": plan.relid, "plan": plan.to_json(), **at}


def show(
    spark: SparkSession, ledger: LogReader, upto: Lsn | None, relations: Mapping[tuple[Layer, int], str]
) -> dict[str, Model]:
    """Create the view of plans for a dbt run in this session, at the ledger's table snapshot of `raw.events`.

    `relations` are the tables that the models make, as `schema.name`. The view also has what each model finds. The
    result has the models by these names.
    """
    import pyarrow as pa

    last = ledger.last()
    assert last is not None
    end = last.complete_to if upto is None else upto
    planned = list(plans(ledger, end))
    named = ((plan, relations.get((plan.layer, plan.relid))) for plan in planned)
    models = [(plan, name) for plan, name in named if name is not None]
    found = dict(zip((name for _, name in models), targets.find(spark, ledger, end, models), strict=True))
    texts = {(p.layer, p.relid): json.dumps(asdict(found[name])) for p, name in models}
    table = check_results.to_arrow(PLANS, [_row(last, plan, end) for plan in planned])
    # dbt converts the text of a snapshot id to a number, and the id is too large for that. The letter prevents it.
    table = table.append_column("snapshot", pa.array([f"s{ledger.snapshot_id()}"] * table.num_rows, pa.string()))
    table = table.append_column("found", pa.array([texts.get((p.layer, p.relid)) for p in planned], pa.string()))
    # A frame from Arrow is a local relation, so that a model reads its plan without a job.
    spark.createDataFrame(table).createOrReplaceTempView(RUN_VIEW)
    return {name: Model(plan, found[name]) for plan, name in models}


__all__ = ["RUN_VIEW", "rows", "show", "write"]
