"""Render the Spark SQL expressions of typed columns.

The rules are the dbt project's own macros, so that dbt models and parity checks cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, Self

from toolkit.values.names import quote_spark
from toolkit.values.resources import FOLDER
from toolkit.values.table import Column

_MACROS = FOLDER / "dbt_project" / "macros" / "types"


@cache
def _module() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, autoescape=False)
    macros = (path.read_text(encoding="utf-8") for path in sorted(_MACROS.glob("*.sql")))
    return environment.from_string("".join(macros)).module


class SourceType(Protocol):
    """A type of the source, as a column of a table has it."""

    @property
    def type(self) -> str:
        """Return its name with its modifiers, such as `numeric(12,2)`."""

    @property
    def type_kind(self) -> str:
        """Return its kind, as `Column.type_kind`."""

    @property
    def base_type(self) -> str | None:
        """Return the name of the type below a domain."""


@dataclass(frozen=True, slots=True)
class BareType:
    """A type of the source, without the column."""

    type: str
    type_kind: str
    base_type: str | None

    @classmethod
    def of(cls, column: SourceType) -> Self:
        """Return the type of a column."""
        return cls(column.type, column.type_kind, column.base_type)


def literal(text: str | None) -> str:
    """Render a text, or NULL for None, as a Spark SQL string literal."""
    return str(_module().cdc_literal(text)).strip()


def kind(column: SourceType) -> str:
    """Return the kind of a lake column.

    One of: bool int bigint float double date timestamp timestamptz binary decimal string.
    """
    return _kind(BareType.of(column))


# Thousands of tables have few types, and a macro takes as long as hundreds of such questions.
@cache
def _kind(of: BareType) -> str:
    return str(_module().cdc_kind(of)).strip()


def spark_type(column: SourceType) -> str:
    """Return the Spark type of a column in `current.*` and `history.*`, for example `decimal(12,2)`."""
    return _spark_type(BareType.of(column))


@cache
def _spark_type(of: BareType) -> str:
    return str(_module().cdc_spark_type(of)).strip()


def typed_sql(text_expr: str, column: SourceType) -> str:
    """Convert an expression of PostgreSQL text to the typed value, or to NULL if the type cannot hold it exactly."""
    return str(_module().cdc_typed(text_expr, column)).strip()


def text_sql(lake_name: str, column: Column, canonical: str | None = None) -> str:
    """Render the source's exact text of a column from the typed column and `_cdc_text`.

    Args:
        canonical: expression to use for the text of a typed value, instead of the usual one.
    """
    return str(_module().cdc_text_of(lake_name, column, canonical=canonical)).strip()


def relabelled_sql(text_expr: str, labels: Mapping[str, str], *, nested: bool) -> str:
    """Replace enum labels in an expression of PostgreSQL text. If `nested`, they are parts of the text."""
    return str(_module().cdc_relabel(text_expr, labels, nested)).strip()


def canonical_sql(lake_name: str, column: SourceType) -> str:
    """Render the source's text of a column from the typed column alone; exact for rows whose `_cdc_text` is NULL."""
    return str(_module().cdc_canonical(quote_spark(lake_name), column)).strip()
