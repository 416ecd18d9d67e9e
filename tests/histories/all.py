"""All histories."""

from __future__ import annotations

from tests.histories import columns, identity, names, partitions, rewrites, transactions, triggers, types

ALL = (
    *types.HISTORIES,
    *columns.HISTORIES,
    *identity.HISTORIES,
    *rewrites.HISTORIES,
    *names.HISTORIES,
    *partitions.HISTORIES,
    *transactions.HISTORIES,
    *triggers.HISTORIES,
)
NAMED = {history.name: history for history in ALL}

__all__ = ["ALL", "NAMED"]
