"""Batch CDC reconciliation for PostgreSQL and an Iceberg lake: right at every LSN, and proven so.

`toolkit.open()` gives what the commands do as methods of one object. Nothing else of the package is public.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.api import Toolkit

__version__ = "0.1.0"
__all__ = ["__version__", "open"]

# Arrow's own allocators keep tens of megabytes of freed memory. The C library's is as fast, and `values.freed_memory`
# returns it. Arrow reads this when it is imported, here and in the workers of Spark on this machine.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def open(config: str | Path | None = None) -> Toolkit:
    """Open the source and the lake that a configuration file names: `CDC_CONFIG`, or `cdc.toml`, by default.

    A relative name is looked up in the working directory and in the folders above it, so that a notebook may be in a
    folder of the project. Reads the file; connects to nothing.

    Raises:
        ConfigError: the file is missing or wrong; the message names the key.
    """
    from toolkit.api import Toolkit
    from toolkit.values.config import DEFAULT_NAME, load

    named = config or os.environ.get("CDC_CONFIG") or DEFAULT_NAME
    above = (folder / named for folder in (Path(), *Path.cwd().parents))
    found = next((file for file in above if file.is_file()), None)
    return Toolkit(load(str(found or config) if found or config else None))
