"""Drop lake tables whose source table was renamed or dropped, or whose rows are not known any more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from toolkit.rawlog.states import copied
from toolkit.values.errors import LakeError
from toolkit.values.log_setup import logger
from toolkit.values.names import lake_table, quote_spark

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.values.lake_access import LakeAccess

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Retired:
    """Names of the dropped tables, and why others are still there."""

    dropped: tuple[str, ...]
    failed: Mapping[str, str]


def retire(access: LakeAccess, ledger: Ledger) -> Retired:
    """Drop the built tables whose name no source table has any more.

    A renamed table is built under its new name. The old table is dropped only when the new one exists and no view of
    `published` shows the old one. The `history` of a table that was dropped at the source is kept under a name of its
    own, until the table is erased. Tables that no build of this generation has made are ignored, and so are those that
    a user has renamed. A table that is damaged, or of which a file cannot be deleted, does not stop the others. Nothing
    is dropped if a view of `published` is damaged, since it could show any table.
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
        return Retired((), {})
    unread: dict[str, str] = {}
    for view in reads.tables(access, own.published, "VIEW"):
        with reads.noting_damage(unread, f"{own.published}.{view}"):
            named.update(reads.properties(access, f"{own.published}.{view}").get(READ, view).split())
    if unread:
        return Retired((), unread)
    done = copied(ledger)
    erased = {relid for relid, version in versions.items() if version.table.dropped and relid not in done}

    @cache
    def names_at_source() -> set[tuple[int, str]]:
        return {(v.table.relid, lake_table(v.table.schema, v.table.name)) for v in ledger.schema_versions()}

    def is_left(layer: str, name: str) -> bool:
        if name in named and not (layer == own.history and erased):
            return False
        relid, generation = _made_of(access, f"{layer}.{name}")
        version = versions.get(relid)
        if version is None or last is None or generation != last.generation:
            return False
        if layer == own.history and relid in erased:
            return True
        if name in named or name == version.history_name or (relid, name) not in names_at_source():
            return False
        follows = layer == own.history or not version.table.dropped
        return not follows or _made_of(access, f"{layer}.{version.history_name}") == (relid, generation)

    dropped, failed = [], {}
    for layer, name in [(layer, name) for layer, names in made.items() for name in names]:
        table = f"{layer}.{name}"
        try:
            if not is_left(layer, name):
                continue
            removal.drop(own_session(access), access, f"{layer}.{quote_spark(name)}")
        except LakeError as error:
            failed[table] = str(error)
            continue
        dropped.append(table)
        _log.info("table dropped", extra={"table": table})
    return Retired(tuple(dropped), failed)


def drop_unknown(access: LakeAccess, schema: str, known: Collection[str]) -> None:
    """Drop what an earlier build as of this LSN has made of tables that are not `known` at it any more.

    A gap or a difference may have been found since, or the rows were erased. Tables of the user's are left alone.

    Raises:
        LakeError: a table is damaged, or a file of it cannot be deleted.
    """
    from toolkit.lake import reads, removal
    from toolkit.lake.session import own_session

    for name in sorted(set(reads.tables(access, schema)) - set(known)):
        if _made_of(access, f"{schema}.{name}") != (-1, -1):
            removal.drop(own_session(access), access, f"{schema}.{quote_spark(name)}")
            _log.info("table dropped", extra={"table": f"{schema}.{name}"})


def _made_of(access: LakeAccess, table: str) -> tuple[int, int]:
    """Return the relid and generation that a build has written into a table; -1 if no build did."""
    from toolkit.lake import reads

    properties = reads.properties(access, table)
    return int(properties.get("cdc.relid", -1)), int(properties.get("cdc.generation", -1))
