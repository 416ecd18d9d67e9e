"""Define the results of a build."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BuildAction(StrEnum):
    """Action of a build for a model."""

    REBUILD = "rebuild"
    MERGE = "merge"
    SKIP = "skip"
    VIEW = "view"  # not a table of the toolkit


@dataclass(frozen=True, slots=True)
class ModelResult:
    """The result of one model."""

    name: str  # schema.alias
    action: BuildAction
    reason: str
    seconds: float
