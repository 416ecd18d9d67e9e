"""The toolkit's plugin for dbt. Every run of dbt imports the installed modules whose names start with `dbt_`.

So a plain `dbt run` decides by the same rules as `cdc build`, and replaces tables as it does: only as the run has found
them. No run with the toolkit's profile sends a commit twice. Projects of others get methods of the adapter that they do
not call. Nothing of the toolkit is imported before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from dbt.plugins import dbtPlugin


class CdcToolkit(dbtPlugin):  # type: ignore[misc]
    """Give macros `adapter.cdc_target`, `cdc_decide`, `cdc_replace` and `cdc_write` where dbt runs on Spark."""

    def initialize(self) -> None:
        """Extend the adapter that dbt is about to create."""
        from dbt.adapters.factory import FACTORY

        spark = FACTORY.plugins.get("spark")
        if spark is not None and not hasattr(spark.adapter, "cdc_replace"):
            spark.adapter = _extended(spark.adapter)


plugins = [CdcToolkit]


def _extended(adapter: Any) -> Any:
    from dbt.adapters.base.meta import available

    class SparkAdapter(adapter):  # type: ignore[misc]  # dbt finds parts by the name of this class
        def execute(self, *args: Any, **named: Any) -> Any:
            """Run a statement. Before the first one, forbid the catalog of the toolkit's lake to repeat commits."""
            if self.config.profile_name == "cdc" and not getattr(self, "_cdc_forbidden", False):
                self._cdc_forbidden = True
                _, found = super().execute("select current_catalog()", fetch=True)  # the session exists after it
                _forbid_repeated_commits(found.rows[0][0])
            return super().execute(*args, **named)

        @available  # type: ignore[untyped-decorator]
        def cdc_decide(
            self, plan: Mapping[str, Any], target: Mapping[str, Any], news: Mapping[str, Any] | None = None
        ) -> dict[str, str] | None:
            """Return what brings a table to the position of its plan, and why; None if it is ahead of the log.

            Without `news`, a table whose new events decide is said to have none.
            """
            from toolkit.lake import targets

            at, segments = plan["position"], plan["segments"]
            keyed = bool(segments and segments[-1]["key"])
            aim = targets.Aim(
                plan["relid"], plan["schema_id"], bool(segments), keyed, at["generation"], at["batch"], at["upto"],
                plan["layer"] == "current",
            )  # fmt: skip
            built = targets.Target(**target) if "batch" in target else None
            counts = {name: news[name] for name in ("n", "low", "high", "control") if name in news} if news else {}
            decision = targets.decide(aim, built, targets.Facts(**counts))
            return None if decision is None else {"action": str(decision.action), "reason": decision.reason}

        @available  # type: ignore[untyped-decorator]
        def cdc_target(self, namespace: str, name: str) -> dict[str, Any]:
            """Return what a table says of its newest build; only its current table snapshot if no build has made it."""
            from toolkit.lake import reads, table_commit, targets

            with _session() as spark:
                (catalog,) = spark.sql("select current_catalog()").collect()[0]
                metadata = table_commit.read_metadata(spark, catalog, f"{namespace}.{name}")
                found, current = targets.target_of(metadata), reads.current_snapshot(metadata)
            return asdict(found) if found else {"snapshot": str(current["snapshot-id"]) if current else None}

        @available  # type: ignore[untyped-decorator]
        def cdc_replace(
            self,
            namespace: str,
            name: str,
            sql: str,
            properties: Mapping[str, Any],
            summary: Mapping[str, Any],
            tag: str | None,
            since: str | None,
        ) -> None:
            """Create a table, or replace its table snapshot `since`, with the rows of a query."""
            from toolkit.lake import table_commit

            given = {key: str(value) for key, value in properties.items() if value is not None}
            commit = table_commit.Commit(given, _texts(summary), tag, None if since is None else int(since))
            with _session() as spark:
                (catalog,) = spark.sql("select current_catalog()").collect()[0]
                table_commit.replace_by_query(spark, catalog, f"{namespace}.{name}", sql, commit)

        @available  # type: ignore[untyped-decorator]
        def cdc_write(self, statement: str, summary: Mapping[str, Any]) -> None:
            """Run a statement whose commit has this summary, and no other commit of the session."""
            from toolkit.lake import table_commit

            with _session() as spark:
                table_commit.write(spark, statement, _texts(summary))

    return SparkAdapter


@contextmanager
def _session() -> Iterator[Any]:
    """Give the session that has run dbt's statements. Of an error that is not dbt's own, dbt would show a stack."""
    from dbt_common.exceptions import DbtRuntimeError
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        raise DbtRuntimeError("dbt does not run Spark itself; set `method: session` in the profile")
    try:
        yield SparkSession.builder.getOrCreate()
    except Exception as error:
        raise DbtRuntimeError(str(error)) from error


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items()}


def _forbid_repeated_commits(catalog: str) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from toolkit.lake.lake_catalog import forbid_repeated_commits

    if SparkContext._active_spark_context is not None:  # dbt runs Spark itself
        forbid_repeated_commits(SparkSession.builder.getOrCreate(), catalog)
