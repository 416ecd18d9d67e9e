"""Open the lake once for a command: one reading of the raw log, and Spark when it is first needed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from toolkit.lake.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.values.capture_rules import CaptureRules
    from toolkit.values.lake_access import LakeAccess


class Lake:
    """The lake for one command. Opening it starts no JVM and reads nothing."""

    def __init__(self, access: LakeAccess, *, rules: CaptureRules) -> None:
        self.access, self.rules = access, rules

    @cached_property
    def ledger(self) -> Ledger:
        """Return one reading of the raw log, made at the first question."""
        return self.reading()

    @property
    def spark(self) -> SparkSession:
        """Return the Spark session of this lake, in ANSI mode. dbt uses another session."""
        from toolkit.lake.session import own_session

        return own_session(self.access)

    def reading(self) -> Ledger:
        """Return a further reading of the raw log, as it is now."""
        return Ledger(self.access, rules=self.rules)

    def reread(self) -> Ledger:
        """Read the raw log again, after a drain or a build."""
        self.ledger.refresh()
        return self.ledger
