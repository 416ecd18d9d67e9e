"""Keep the plans that `toolkit.rawlog.plan` makes in `ops.plans`, where dbt reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.lake import check_results
from toolkit.lake.tables import PLANS
from toolkit.rawlog.plan import plans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.rawlog.store import LogReader
    from toolkit.values.lsn import Lsn

#: Temporary view with the plans of one run of dbt and the position that they are for.
RUN_VIEW = "cdc_plans"


def write(ledger: LogReader) -> None:
    """Write the plans of all tables at the newest batch, if any differs from what is there. Starts no JVM."""
    check_results.replace_rows(ledger.config, PLANS, rows(ledger))


def rows(ledger: LogReader, upto: Lsn | None = None) -> list[dict[str, Any]]:
    """Give the rows of `ops.plans`, at the newest batch or at an earlier LSN."""
    last = ledger.last()
    if last is None:
        return []
    end = last.complete_to if upto is None else upto
    at = {"generation": last.generation, "batch_id": last.batch_id, "upto": int(end)}
    return [{"layer": str(p.layer), "relid": p.relid, "plan": p.to_json(), **at} for p in plans(ledger, end)]


def show(spark: SparkSession, ledger: LogReader, upto: Lsn | None = None) -> None:
    """Make the view of the plans for a run of dbt in this session, at the ledger's table snapshot of `raw.events`."""
    import pyarrow as pa

    found = check_results.to_arrow(PLANS, rows(ledger, upto))
    # A snapshot id is too large for what dbt makes of a number.
    snapshot = pa.array([f"s{ledger.snapshot_id()}"] * found.num_rows, pa.string())
    # From Arrow it is a local relation: a model reads its plan without a job.
    spark.createDataFrame(found.append_column("snapshot", snapshot)).createOrReplaceTempView(RUN_VIEW)


__all__ = ["RUN_VIEW", "rows", "show", "write"]
