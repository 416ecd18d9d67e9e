"""Where a run keeps what it has read and not yet committed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import LakeError

if TYPE_CHECKING:
    from toolkit.config import Config


@contextmanager
def spool_directory(config: Config) -> Iterator[Path]:
    """A folder of this run's own, removed afterwards: `[drain] spool_dir`, else beside the lake."""
    base = config.path(config.drain.spool_dir) if config.drain.spool_dir else config.work_dir / "spool"
    try:
        base.mkdir(parents=True, exist_ok=True)
        holder = tempfile.TemporaryDirectory(dir=base, prefix="run-")
    except OSError as error:
        raise LakeError(f"spooling to {base}: {error.strerror or error}; check [drain] spool_dir") from None
    with holder as name:
        yield Path(name)
