"""What the source has renamed or dropped leaves `current` and `history`: nobody builds it any more or calls it red."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.values.log_setup import logger
from toolkit.values.names import lake_table, quote_spark

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.values.config import Config

_log = logger(__name__)


def retire(config: Config, ledger: Ledger) -> tuple[str, ...]:
    """Drop the built tables that no table of the source is called by any more.

    A renamed table is built under its new name; of a dropped one `history` stays, to its end, under a name of its own.
    Until that stands, and while a view of `published` is there, the old one stays too. Tables that no build of this
    generation has made are not looked at. Returns the names of what left.
    """
    from toolkit.lake import reads

    last = ledger.last()
    versions = ledger.latest_versions()
    named = {lake_table(v.table.schema, v.table.name) for v in versions.values() if not v.table.dropped}
    named |= set(reads.tables(config, "published", "VIEW"))
    left = []
    for layer in ("current", "history"):
        for name in reads.tables(config, layer):
            if name in named:
                continue
            relid, generation = _made_of(config, f"{layer}.{name}")
            version = versions.get(relid)
            if version is None or last is None or generation != last.generation or name == version.history_name:
                continue
            follows = layer == "history" or not version.table.dropped
            if follows and _made_of(config, f"{layer}.{version.history_name}") != (relid, generation):
                continue
            left.append(f"{layer}.{quote_spark(name)}")
    if left:
        from toolkit.lake.session import own_session

        for table in left:
            own_session(config).sql(f"DROP TABLE {table} PURGE")
            _log.info("table left", extra={"table": table})
    return tuple(table.replace("`", "") for table in left)


def _made_of(config: Config, table: str) -> tuple[int, int]:
    """Relid and generation that a build has written into a table; -1 where none did."""
    from toolkit.lake import reads

    properties = reads.properties(config, table)
    return int(properties.get("cdc.relid", -1)), int(properties.get("cdc.generation", -1))
