"""Define what a worker decodes: a run of messages and the layouts of their tuples."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.decode.stream import Run
from toolkit.rawlog.event import Kind

#: Kind of a layout whose rows are not read: those of the toolkit's own tables on the source.
UNREAD = "unread"
#: Why a table is stale of which the server identified rows otherwise than the schema version says.
OTHER_IDENTITY = "its rows were identified by another replica identity, without a captured event"


@dataclass(frozen=True, slots=True)
class Binding:
    """The layout of the tuples of a relation, from message `start` on."""

    start: int  # message index
    relid: int
    attnums: tuple[int, ...]  # by position in the tuple
    width: int  # length of an image
    schema_id: int | None  # None if no schema version fits
    absent: tuple[int, ...] = ()
    #: Kind of the events: row, logged (the slot captures the table too), or log (rows of the change log itself). Also
    #: `UNREAD`.
    kind: str = Kind.ROW
    key: tuple[int, ...] = ()  # attnums in every old key


@dataclass(frozen=True, slots=True, eq=False)
class DecodeTask:
    """The messages that one worker decodes, possibly part of one transaction. It holds everything except the bytes."""

    path: str
    run: Run
    bindings: tuple[Binding, ...]  # start: index into this task; 0 for bindings that are valid before it
    batch_id: int
    generation: int
    images: tuple[Binding, ...] = ()  # layouts of the images within rows of the change log, `start` as in bindings

    @property
    def span(self) -> tuple[int, int]:
        """Return the first and the last byte of the spool that the task reads, the last one not included."""
        return int(self.run.offsets[0]), int(self.run.offsets[-1])

    def moved(self, path: str) -> DecodeTask:
        """Return the same task over a file that holds only the bytes of `span`."""
        return replace(self, path=path, run=replace(self.run, offsets=self.run.offsets - self.run.offsets[0]))
