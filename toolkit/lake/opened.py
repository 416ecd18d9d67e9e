"""Open the lake once for a command: one reading of the raw log, and Spark when it is first needed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from toolkit.lake.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.values.config import Config


class Lake:
    """A lake as one command sees it. Opening it starts no JVM and reads nothing."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @cached_property
    def ledger(self) -> Ledger:
        """One reading of the raw log, of the moment of its first question."""
        return Ledger(self.config)

    @property
    def spark(self) -> SparkSession:
        """The session of this lake, in ANSI mode; dbt has another."""
        from toolkit.lake.session import own_session

        return own_session(self.config)

    def reread(self) -> Ledger:
        """Read the raw log again, after a drain or a build."""
        self.ledger.refresh()
        return self.ledger
