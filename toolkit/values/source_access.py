"""Define how the source is read: the sections `[drain]`, `[snapshot]` and `[ddl]` beside the rules of capture."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field, field_validator

from toolkit.values.capture_rules import CaptureRules, Section, SourceConfig
from toolkit.values.durations import MOST_SECONDS
from toolkit.values.modes import CommandText, CopyOn


class DrainConfig(Section):
    """Bounds of what a drain reads at once."""

    max_changes: int = Field(default=1_000_000, gt=0)
    """Messages that one peek may return, rounded up to whole transactions."""
    batch_changes: int = Field(default=1_000_000, gt=0)
    """Messages of one commit, rounded up to whole transactions."""
    spool_dir: str | None = None
    """Folder of this machine for the bytes of a peek; default: beside the lake."""


#: Commands that change neither the shape of a table, nor a value, nor how rows are identified.
WITHOUT_EFFECT = ("CREATE INDEX", "REINDEX")


class DdlConfig(Section):
    """Settings of captured DDL."""

    ignore: tuple[str, ...] = ()
    """Command tags that leave no event: `CREATE INDEX`, `REINDEX`. Others can change what a row means and are
    refused."""
    sql: CommandText = CommandText.KEEP
    """What to keep of a command's text. Without the text every rewrite makes its table stale."""

    @field_validator("ignore")
    @classmethod
    def _without_effect(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        for tag in tags:
            if tag not in WITHOUT_EFFECT:
                raise ValueError(
                    f"{tag!r} can change a table's shape, its values or its replica identity, so its event is needed;"
                    f" only {' and '.join(WITHOUT_EFFECT)} can be left out"
                )
        return tags


class SnapshotConfig(Section):
    """Settings of copies."""

    on: CopyOn = CopyOn.DRIVER
    """Who reads tables of over 64 MB on a cluster: the `driver`, or `executors`, with a password of their machine."""
    workers: int = Field(default_factory=lambda: min(8, os.cpu_count() or 1), ge=0)
    """Processes or tasks that copy tables at once; default: one for each core, at most 8. 0: the command's process."""
    piece_mb: float = Field(default=256.0, gt=0)
    """Largest part of a table's file that one worker reads at a time."""
    lock_seconds: float = Field(default=30.0, gt=0, le=MOST_SECONDS)
    """Seconds to wait for another session's lock; the refusal names that session."""
    heal_mb: float = Field(default=1024.0, ge=0)
    """Total size of the stale tables that `cdc run --heal` copies again."""


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """The rules of capture, and the bounds of drains, copies and cuts. Everything that captures takes it."""

    rules: CaptureRules
    drain: DrainConfig
    snapshot: SnapshotConfig
    ddl: DdlConfig
    cut_seconds: float  # `[check] cut_seconds`
    sessions: int  # `[check] sessions`
    spool_dir: Path  # the folder of this machine in which each run makes its own for what it has read

    @property
    def config(self) -> SourceConfig:
        """Return the section `[source]`."""
        return self.rules.source

    def changed(self, **changes: object) -> SourceAccess:
        """Return the same with other values in `[source]`."""
        return replace(self, rules=replace(self.rules, source=self.config.model_copy(update=changes)))
