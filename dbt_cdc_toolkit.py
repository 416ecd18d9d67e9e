"""The toolkit's plugin for dbt. Every run of dbt imports the installed modules whose names start with `dbt_`.

So a plain `dbt run` replaces tables as `cdc build` does: only as the run has found them. Projects of others get a
method of the adapter that they do not call. Nothing of the toolkit is imported before a table is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbt.plugins import dbtPlugin


class CdcToolkit(dbtPlugin):  # type: ignore[misc]
    """Give macros `adapter.cdc_replace` where dbt runs on Spark."""

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
        @available  # type: ignore[untyped-decorator]
        def cdc_replace(
            self, namespace: str, name: str, sql: str, properties: Mapping[str, Any], tag: str | None, since: str | None
        ) -> None:
            """Create a table, or replace its table snapshot `since`, with the rows of a query."""
            from dbt_common.exceptions import DbtRuntimeError
            from pyspark import SparkContext
            from pyspark.sql import SparkSession

            from toolkit.lake import table_commit

            if SparkContext._active_spark_context is None:
                raise DbtRuntimeError("dbt does not run Spark itself; set `method: session` in the profile")
            given = {key: str(value) for key, value in properties.items() if value is not None}
            commit = table_commit.Commit(given, {}, tag, None if since is None else int(since))
            spark = SparkSession.builder.getOrCreate()  # the session that has run the statements before
            (catalog,) = spark.sql("select current_catalog()").collect()[0]
            try:
                table_commit.replace_by_query(spark, catalog, f"{namespace}.{name}", sql, commit)
            except Exception as error:  # dbt shows the message of this one, and a stack of every other
                raise DbtRuntimeError(str(error)) from error

    return SparkAdapter
