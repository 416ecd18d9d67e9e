"""Build small tables together, before dbt runs: one Spark job folds them all, and each takes one commit.

A table that is not simple, or not small, is left to its model. So is one that another process changes at the same time.
What a model makes of the same log is equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from toolkit.build.results import ModelResult
from toolkit.lake import reads, shared_fold, table_commit
from toolkit.rawlog import order
from toolkit.rawlog.plan import Layer
from toolkit.values import progress
from toolkit.values.errors import LakeError
from toolkit.values.lake_types import spark_type
from toolkit.values.log_setup import logger
from toolkit.values.threads import in_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.lake.plans import Model
    from toolkit.lake.shared_fold import Wanted
    from toolkit.lake.table_commit import Java
    from toolkit.lake.targets import Found
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.rawlog.plan import TablePlan
    from toolkit.values.config import DbtProject
    from toolkit.values.lake_access import LakeAccess

_T = TypeVar("_T")

_log = logger(__name__)
#: The most events of a table, and the most characters of their images.
_EVENTS = 20_000
_CHARACTERS = 8 << 20
#: The most characters of one job, whose rows are in memory.
_JOB = 4 << 20
#: A merge writes the whole table, so a larger file is left to a merge of its model, which writes the changes only.
_MERGED_BYTES = 1 << 20
_WRITTEN = {f"write.{operation}.mode": "merge-on-read" for operation in ("delete", "update", "merge")}
_WRITTEN["write.parquet.row-group-size-bytes"] = str(16 << 20)  # by its bounds, a reader of few keys skips a row group


def build(
    access: LakeAccess, spark: SparkSession, ledger: Ledger, models: Mapping[str, Model], *, dbt: DbtProject
) -> tuple[list[ModelResult], bool]:
    """Bring every small table among the models to the ledger's position, and return their results.

    The second value says whether another process changed a table meanwhile, so that what its model finds is outdated.
    """
    last = ledger.last()
    assert last is not None
    found = {name: _wanted(access, name, model) for name, model in models.items()}
    wanted = {name: table for name, table in found.items() if table is not None}
    if not wanted:
        return [], False
    relids = sorted({table.plan.relid for table in wanted.values()})
    sizes = _together(lambda: shared_fold.characters(spark, ledger, last.complete_to, relids))
    if sizes is None:
        return [], False
    small = [name for name, table in wanted.items() if sizes.get(table.plan.relid, 0) <= _CHARACTERS]
    built: list[ModelResult] = []
    moved, java = False, table_commit.Java(spark)
    with progress.stage("building small tables", "tables", len(small)) as stage:
        for names in _jobs(small, [sizes.get(wanted[name].plan.relid, 0) for name in small]):
            folding = partial(shared_fold.fold, spark, ledger, last.complete_to, [wanted[name] for name in names])
            if (rows := _together(folding)) is None:
                continue
            tables = zip(names, (models[name] for name in names), (wanted[name] for name in names), rows, strict=True)
            for result in in_threads(lambda one: _built(access, java, last, *one), tables, dbt.threads):
                moved |= result is None
                built += [] if result is None else [result]
                stage.add()
    return built, moved


def _together(job: Callable[[], _T]) -> _T | None:
    """Run one Spark job for several tables; None if it fails, such as for a lost file of the log: models read less."""
    try:
        return job()
    except Exception as error:
        _log.warning("tables are left to their models", extra={"error": repr(error)[:500]})
        return None


def _built(
    access: LakeAccess,
    java: Java,
    last: BatchRecord,
    name: str,
    model: Model,
    table: Wanted,
    folded: shared_fold.Folded,
) -> ModelResult | None:
    """Write one table; None if another process changed it meanwhile."""
    started = time.monotonic()
    try:
        _write(access, java, last, name, model.found, table, folded)
    except LakeError as error:
        _log.warning("left to its model", extra={"table": name, "reason": str(error)})
        return None
    decision = model.found.decision
    assert decision is not None
    return ModelResult(name, decision.action, decision.reason, round(time.monotonic() - started, 3))


def _wanted(access: LakeAccess, name: str, model: Model) -> Wanted | None:
    plan, found = model.plan, model.found
    if found.decision is None or found.quiet or found.partitioned or not shared_fold.is_simple(plan):
        return None  # Spark divides rows into partitions
    if found.whole is not None:
        if found.whole.chained or found.whole.n > _EVENTS:
            return None
        return shared_fold.Wanted(plan, plan.segments[0].low.position, merge=False, toast=found.whole.left_out)
    if found.target is None or found.news.chained or found.news.n > _EVENTS or not shared_fold.can_merge(plan):
        return None
    size = (reads.snapshot_summary(access, name) or {}).get("total-files-size")
    if size is None or int(size) > _MERGED_BYTES:
        return None
    return shared_fold.Wanted(plan, order.start_of(found.target.lsn), merge=True, toast=found.news.left_out)


def _jobs(names: Sequence[str], sizes: Sequence[int]) -> Iterator[list[str]]:
    """Divide tables into jobs by the size of their images."""
    job: list[str] = []
    total = 0
    for name, size in zip(names, sizes, strict=True):
        if job and total + size > _JOB:
            yield job
            job, total = [], 0
        job.append(name)
        total += size
    if job:
        yield job


def _write(
    access: LakeAccess,
    java: Java,
    last: BatchRecord,
    name: str,
    found: Found,
    table: Wanted,
    folded: shared_fold.Folded,
) -> None:
    plan = table.plan
    tag = f"g{last.generation}_lsn_{last.complete_to.tag}" if plan.layer == Layer.CURRENT else None
    summary = {
        "cdc.applied-batch": str(last.batch_id),
        "cdc.applied-lsn": str(int(last.complete_to)),
        "cdc.generation": str(last.generation),
    }
    since = None if found.since is None else int(found.since)
    if table.merge:
        assert since is not None
        rows = shared_fold.merged(plan, table_commit.read_table(access, name, since), folded)
        table_commit.overwrite(java, access, name, rows, table_commit.Commit({}, summary, tag, since))
        return
    properties = {
        "cdc.relid": str(plan.relid), "cdc.schema-id": str(plan.schema_id), "cdc.generation": str(last.generation),
        "format-version": "3", **_WRITTEN, **({"comment": plan.comment} if plan.comment else {}),
    }  # fmt: skip
    commit = table_commit.Commit(properties, summary, tag, since)
    table_commit.replace_table(java, access, name, _columns(plan), folded.rows, commit)


def _columns(plan: TablePlan) -> list[tuple[str, str]]:
    """Return the names and Spark types of the table's columns, in the order of the models."""
    own = [(column.lake, spark_type(column)) for column in plan.columns]
    meta = [("_cdc_from_lsn", "bigint")]
    if plan.layer == Layer.HISTORY:
        meta += [("_cdc_to_lsn", "bigint"), ("_cdc_doubtful", "boolean")]
    return [*own, *meta, ("_cdc_text", "map<string,string>")]
