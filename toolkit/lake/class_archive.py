"""Find the archive of the JVM's classes for a Java runtime and a set of jars.

With it, a JVM need not read and verify the classes of Spark and Iceberg, and is ready in about two thirds of the time.
`class_recording` makes it, in the cache of the user's account. The JVM itself checks whether an archive fits, and
starts without one that does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from toolkit.lake import jars
from toolkit.lake.java import cache_folder


def find(java_home: Path, settings: Mapping[str, str]) -> Path | None:
    """Return the archive for a Java runtime and the jars of the settings; None if it was not made yet."""
    with suppress(OSError):  # an account may not enter the folder that HOME names
        found = place(java_home, settings)
        return found if found.is_file() else None
    return None


def place(java_home: Path, settings: Mapping[str, str]) -> Path:
    """Return the place of the archive for a Java runtime and the jars of the settings."""
    digest = hashlib.sha256("\n".join(_parts(java_home, settings)).encode()).hexdigest()
    return cache_folder() / f"classes-{digest[:16]}.jsa"


def _parts(java_home: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """Describe what an archive depends on."""
    import pyspark

    yield str(java_home)
    with suppress(OSError):
        yield (java_home / "release").read_text(encoding="utf-8", errors="replace")
    yield settings.get("spark.jars.packages", "")
    yield from map(str, jars.class_path(settings))
    for folder in (Path(pyspark.__file__).parent / "jars", jars.folder_of(settings)):
        for jar in sorted(folder.glob("*.jar")):
            found = jar.stat()
            yield f"{jar} {found.st_size} {found.st_mtime_ns}"
