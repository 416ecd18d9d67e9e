"""Let the models of a build replace their tables in Python, which replaces only what the build has found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolkit.lake import table_commit
from toolkit.lake.session import session

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess


@contextmanager
def replacing(access: LakeAccess) -> Iterator[None]:
    """Give macros `adapter.cdc_replace` while dbt runs in this process."""
    from dbt.adapters.base.meta import available
    from dbt.adapters.spark import Plugin
    from dbt_common.exceptions import DbtRuntimeError

    adapter: Any = Plugin.adapter

    class SparkAdapter(adapter):  # type: ignore[misc]  # dbt finds modules by the name of this class
        @available  # type: ignore[untyped-decorator]
        def cdc_replace(
            self, namespace: str, name: str, sql: str, properties: Mapping[str, Any], tag: str | None, since: str | None
        ) -> None:
            """Create a table, or replace its table snapshot `since`, with the rows of a query."""
            given = {key: str(value) for key, value in properties.items() if value is not None}
            commit = table_commit.Commit(given, {}, tag, None if since is None else int(since))
            try:
                table_commit.replace_by_query(session(access), access, f"{namespace}.{name}", sql, commit)
            except Exception as error:  # dbt shows the message of this one, and a stack of every other
                raise DbtRuntimeError(str(error)) from error

    Plugin.adapter = SparkAdapter
    try:
        yield
    finally:
        Plugin.adapter = adapter
