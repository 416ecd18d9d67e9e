"""Name the namespaces of a source in the lake, and the tables that the toolkit keeps in them.

Several sources share a lake by `[lake] prefix`: each has all of these namespaces under its own prefix. No other module
writes the name of a namespace, and dbt learns the prefix from the schema of its profile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolkit.values.names import rebuild_command

_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Namespaces:
    """The namespaces of one source. Without a prefix they are `raw`, `staging`, `current` and so on."""

    prefix: str = ""

    def of(self, name: str) -> str:
        """Return the namespace that is called `name` in a lake of one source."""
        return f"{self.prefix}_{name}" if self.prefix else name

    @property
    def raw(self) -> str:
        """Return the namespace of the log."""
        return self.of("raw")

    @property
    def staging(self) -> str:
        """Return the namespace of the views over the log. dbt's profile names it, and macros find the prefix in it."""
        return self.of("staging")

    @property
    def current(self) -> str:
        """Return the namespace of the tables with the newest rows."""
        return self.of("current")

    @property
    def history(self) -> str:
        """Return the namespace of the tables with row versions."""
        return self.of("history")

    @property
    def ops(self) -> str:
        """Return the namespace of what commands write about the tables."""
        return self.of("ops")

    @property
    def published(self) -> str:
        """Return the namespace of the views of proven rows."""
        return self.of("published")

    @property
    def all(self) -> tuple[str, ...]:
        """Return every namespace of the source, except those of builds as of an LSN."""
        return (self.raw, self.staging, self.current, self.history, self.ops, self.published)

    def as_of(self, tag: str) -> str:
        """Return the namespace of a build as of an LSN, from the LSN's hexadecimal form."""
        return self.of(f"asof_{tag}")

    @property
    def events(self) -> str:
        """Return the table of the log."""
        return f"{self.raw}.events"

    @property
    def states(self) -> str:
        """Return the table that the model `tables` of dbt shows: each table's state at the newest evaluated batch."""
        return f"{self.ops}.table_states"

    @property
    def plans(self) -> str:
        """Return the table of the plans for builds up to the newest batch. A plain `dbt run` uses them."""
        return f"{self.ops}.plans"

    @property
    def proofs(self) -> str:
        """Return the table with the last proof of each table, which the views of proven rows follow."""
        return f"{self.ops}.published"

    @property
    def proof_ages(self) -> str:
        """Return the view that shows the age of each proof."""
        return f"{self.ops}.proofs"

    @property
    def results(self) -> str:
        """Return the table with every result of every check."""
        return f"{self.ops}.parity_results"

    @property
    def differing_rows(self) -> str:
        """Return the table with the rows that checks found to differ."""
        return f"{self.ops}.parity_rows"

    def remedy(self, table: str) -> str:
        """Return what to do about a `namespace.table` of which a file is missing or damaged."""
        namespace, _, name = table.partition(".")
        if namespace in (self.current, self.history):
            return f"build the table again: `{rebuild_command(name)}`"
        return "run `cdc doctor`"


def checked_prefix(prefix: str) -> str:
    """Return the prefix. Refuse one that is no plain name in every catalog, or equals the name of a namespace.

    Raises:
        ValueError: the prefix is not allowed; the message says what is.
    """
    if not prefix:
        return prefix
    plain = re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", prefix)
    if plain is None or len(prefix) > _LONGEST:
        raise ValueError(
            "a prefix has lower case letters, digits and single underscores, begins with a letter, ends with no"
            f" underscore, and has {_LONGEST} characters at most"
        )
    if prefix == "asof" or prefix in Namespaces().all or prefix.startswith("asof_"):
        raise ValueError("a prefix is not itself the name of a namespace of the toolkit")
    return prefix
