"""All histories."""

from __future__ import annotations

from tests.histories import (
    cascades,
    columns,
    identity,
    names,
    nested_types,
    partitions,
    rewrites,
    transactions,
    triggers,
    types,
)

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
#: More of them, for `make test-long`.
MORE = (*nested_types.HISTORIES, *cascades.HISTORIES)
NAMED = {history.name: history for history in ALL}

__all__ = ["ALL", "MORE", "NAMED"]
