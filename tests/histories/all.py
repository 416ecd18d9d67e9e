"""All histories."""

from __future__ import annotations

from tests.histories import (
    cascades,
    columns,
    identity,
    keys,
    names,
    nested_types,
    partitions,
    replaced,
    rewrites,
    transactions,
    trees,
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
MORE = (
    *nested_types.HISTORIES,
    *cascades.HISTORIES,
    *trees.HISTORIES,
    *keys.HISTORIES,
    *replaced.HISTORIES,
)
NAMED = {history.name: history for history in ALL}

__all__ = ["ALL", "MORE", "NAMED"]
