"""Drop lake tables whose source table was renamed or dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.rawlog.states import copied
from toolkit.values.log_setup import logger
from toolkit.values.names import lake_table, quote_spark

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.values.lake_access import LakeAccess

_log = logger(__name__)


def retire(access: LakeAccess, ledger: Ledger) -> tuple[str, ...]:
    """Drop the built tables whose name no source table has any more.

    A renamed table is built under its new name. The old table is dropped only when the new one exists and no view of
    `published` shows the old one. The `history` of a table that was dropped at the source is kept under a name of its
    own, until the table is erased. Tables that no build of this generation has made are ignored. Return the names of
    the dropped tables.

    Raises:
        LakeError: a file of such a table cannot be deleted; the table is still there then.
    """
    from toolkit.lake import reads, removal, root_views
    from toolkit.lake.published_views import READ
    from toolkit.lake.session import own_session

    last = ledger.last()
    versions = ledger.latest_versions()
    named = {lake_table(v.table.schema, v.table.name) for v in versions.values() if not v.table.dropped}
    named -= {root.name for root in root_views.shown_roots(ledger)}  # a view takes the name
    own = access.names
    made = {layer: reads.tables(access, layer) for layer in (own.current, own.history)}
    if named.issuperset(name for names in made.values() for name in names):
        return ()
    views = reads.tables(access, access.names.published, "VIEW")
    read = (reads.properties(access, f"{access.names.published}.{view}").get(READ, view).split() for view in views)
    named |= {name for names in read for name in names}
    done = copied(ledger)
    erased = {relid for relid, version in versions.items() if version.table.dropped and relid not in done}
    left = []
    for layer, names in made.items():
        for name in names:
            if name in named and not (layer == own.history and erased):
                continue
            relid, generation = _made_of(access, f"{layer}.{name}")
            version = versions.get(relid)
            if version is None or last is None or generation != last.generation:
                continue
            if layer == own.history and relid in erased:
                left.append(f"{layer}.{quote_spark(name)}")
            elif name not in named and name != version.history_name:
                follows = layer == own.history or not version.table.dropped
                if follows and _made_of(access, f"{layer}.{version.history_name}") != (relid, generation):
                    continue
                left.append(f"{layer}.{quote_spark(name)}")
    for table in left:
        removal.drop(own_session(access), access, table)
        _log.info("table dropped", extra={"table": table})
    return tuple(table.replace("`", "") for table in left)


def _made_of(access: LakeAccess, table: str) -> tuple[int, int]:
    """Return the relid and generation that a build has written into a table; -1 if no build did."""
    from toolkit.lake import reads

    properties = reads.properties(access, table)
    return int(properties.get("cdc.relid", -1)), int(properties.get("cdc.generation", -1))
