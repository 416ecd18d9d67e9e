"""Keep the plans that `toolkit.rawlog.plan` makes in `ops.plans`, from which dbt reads them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from toolkit.lake import check_results, reads, targets
from toolkit.lake.pandas_on_demand import create_frame
from toolkit.lake.scans import scan
from toolkit.rawlog import order, plan, states
from toolkit.rawlog.plan import plans
from toolkit.values.json_types import to_json
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.lake.targets import Found
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.rawlog.plan import Layer, TablePlan
    from toolkit.rawlog.store import LogReader


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a dbt run: its plan, and what it finds."""

    plan: TablePlan
    found: Found


#: Temporary view with the plans of one dbt run and the position that they are for.
RUN_VIEW = "cdc_plans"
#: Key of a commit's summary.
_MADE_BY = "cdc.plans-made-by"


def write(ledger: Ledger) -> None:
    """Write the plans of all tables at the newest batch, if any plan differs from the stored one. Needs no JVM."""
    check_results.replace_rows(ledger.access, ledger.access.names.plans, rows(ledger), {_MADE_BY: _code()})


def follow(ledger: Ledger) -> None:
    """Write the plans as `write` does. Read the log for it only if it has an event since that a plan depends on."""
    last, access = ledger.last(), ledger.access
    stored = list(scan(access, access.names.plans)) if last is not None else []
    made_by = (reads.snapshot_summary(access, access.names.plans) or {}).get(_MADE_BY) if stored else None
    if last is None or not stored or made_by != _code() or stored[0]["generation"] != last.generation:
        write(ledger)
        return
    batch_id, upto = stored[0]["batch_id"], Lsn(stored[0]["upto"])
    if batch_id > last.batch_id or ledger.decides(batch_id, upto):
        write(ledger)
    elif batch_id < last.batch_id:
        at = {"batch_id": last.batch_id, "upto": int(last.complete_to)}
        check_results.replace_rows(access, access.names.plans, [row | at for row in stored], {_MADE_BY: _code()})


@cache
def _code() -> str:
    """Identify the code that makes plans: after an upgrade they are made again."""
    return sha256("".join(map(inspect.getsource, (order, plan, states))).encode()).hexdigest()


def rows(ledger: LogReader, upto: Lsn | None = None) -> list[dict[str, Any]]:
    """Return the rows of `ops.plans`, at the newest batch or at an earlier LSN."""
    last = ledger.last()
    if last is None:
        return []
    end = last.complete_to if upto is None else upto
    return [_row(last, made, end) for made in plans(ledger, end)]


def _row(last: BatchRecord, made: TablePlan, upto: Lsn) -> dict[str, Any]:
    at = {"generation": last.generation, "batch_id": last.batch_id, "upto": int(upto)}
    return {"layer": str(made.layer), "relid": made.relid, "plan": made.to_json(), **at}


def show(
    spark: SparkSession, ledger: Ledger, upto: Lsn | None, relations: Mapping[tuple[Layer, int], str]
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
    named = ((one, relations.get((one.layer, one.relid))) for one in planned)
    models = [(one, name) for one, name in named if name is not None]
    found = dict(zip((name for _, name in models), targets.find(spark, ledger, end, models), strict=True))
    texts = {(p.layer, p.relid): to_json(found[name]) for p, name in models}
    table = check_results.to_arrow(ledger.access.names.plans, [_row(last, one, end) for one in planned])
    # dbt converts the text of a snapshot id to a number, and the id is too large for that. The letter prevents it.
    table = table.append_column("snapshot", pa.array([f"s{ledger.snapshot_id()}"] * table.num_rows, pa.string()))
    table = table.append_column("found", pa.array([texts.get((p.layer, p.relid)) for p in planned], pa.string()))
    # A frame from Arrow is a local relation, so that a model reads its plan without a job.
    create_frame(spark, table).createOrReplaceTempView(RUN_VIEW)
    return {name: Model(one, found[name]) for one, name in models}
