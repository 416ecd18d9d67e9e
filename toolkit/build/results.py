"""Define the results of a build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.values.outcome import BuildAction


@dataclass(frozen=True, slots=True)
class ModelResult:
    """The result of one model."""

    name: str  # schema.alias
    action: BuildAction
    reason: str
    seconds: float
