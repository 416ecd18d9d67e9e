"""Open the lake of a configuration, as a command does."""

from __future__ import annotations

from toolkit.lake.ledger import Ledger
from toolkit.lake.opened import Lake
from toolkit.values.config import Config
from toolkit.values.source_access import SourceAccess


def ledger_of(config: Config) -> Ledger:
    """Give a new reading of the log."""
    return lake_of(config).reading()


def lake_of(config: Config) -> Lake:
    """Open the lake."""
    return Lake(config.lake_access, rules=config.capture_rules)


def opened(config: Config) -> tuple[SourceAccess, Lake]:
    """Give what a capture takes."""
    return config.source_access, lake_of(config)
