"""Select the jars that Spark resolves for the lake, and compare them with those that jars.lock pins."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlparse

from toolkit.values.errors import LakeError

_LOCK = Path(__file__).with_name("jars.lock")
#: The sha256 of each jar by its coordinate, `group:artifact:version`.
PINNED: dict[str, str] = dict(
    line.split() for line in _LOCK.read_text(encoding="ascii").splitlines() if not line.startswith("#")
)
#: Where Spark keeps what it resolves in the home folder, unless `spark.jars.ivy` says otherwise.
_IVY = ".ivy2.5.2"
#: What Spark would resolve with a jar of the lock file, although no class of that jar needs it at run time.
_NOT_NEEDED = {
    "org.postgresql:postgresql": ("org.checkerframework:checker-qual",),
    "com.azure:azure-core": (  # Spark brings them
        "com.fasterxml.jackson.core:jackson-annotations",
        "com.fasterxml.jackson.core:jackson-core",
        "com.fasterxml.jackson.core:jackson-databind",
        "com.fasterxml.jackson.datatype:jackson-datatype-jsr310",
        "org.slf4j:slf4j-api",
    ),
    "com.azure:azure-storage-common": ("com.azure:azure-core-http-netty",),  # the JDK's own client is there instead
}


def settings_for(*artifacts: str) -> dict[str, str]:
    """Return the settings that let Spark resolve these jars of the lock file, each named as `group:artifact`."""
    packages = [name for name in PINNED if name.rpartition(":")[0] in artifacts]
    excluded = [other for name in artifacts for other in _NOT_NEEDED.get(name, ())]
    without = {"spark.jars.excludes": ",".join(excluded)} if excluded else {}
    return {"spark.jars.packages": ",".join(packages), **without}


def folder_of(settings: Mapping[str, str]) -> Path:
    """Return the folder of the jars that Spark resolves."""
    if named := settings.get("spark.jars.ivy"):
        return Path(named).expanduser() / "jars"
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir  # Java's home folder, whatever HOME says
    except KeyError:  # Spark does not start in an account without a name
        home = "~"
    return Path(home, _IVY).expanduser() / "jars"


def unwritable(settings: Mapping[str, str]) -> str:
    """Return the remedy if this account may not write in the folder where Spark keeps jars; empty if it may."""
    folder = folder_of(settings).parent
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if there.is_dir() and os.access(there, os.W_OK):
        return ""
    return f'; this account may not write in {folder}: set "spark.jars.ivy" in [spark] to a folder in which it may'


@contextmanager
def one_download(settings: Mapping[str, str]) -> Iterator[None]:
    """Hold a lock while Spark downloads jars: of two downloads of a jar at the same time, one fails.

    Nothing is locked while all jars are there already.
    """
    folder = folder_of(settings)
    asked = list(filter(None, map(str.strip, settings["spark.jars.packages"].split(","))))

    def complete() -> bool:
        return all(name.count(":") == 2 and (folder / file_name(name)).is_file() for name in asked)

    with ExitStack() as locked:
        if not complete():
            with suppress(OSError):  # Spark then says why it cannot write there
                folder.parent.mkdir(parents=True, exist_ok=True)
                file = locked.enter_context((folder.parent / "cdc-toolkit.lock").open("ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
        if complete():
            locked.close()
        yield


def class_path(settings: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the jars of the lock file for the class path of the JVM, if Spark has resolved them, with the pinned hash.

    There their classes are found at once, and the archive of classes has them. Otherwise Spark looks for each of them
    in all of its own jars first. It is all jars or none, and none if the user adds others: a class on the class path
    finds other classes only there.
    """
    asked = [name.strip() for name in settings["spark.jars.packages"].split(",")]
    if settings.get("spark.jars") or not PINNED.keys() >= set(asked):
        return ()
    found = {name: folder_of(settings) / file_name(name) for name in asked}
    return tuple(found.values()) if all(_has(path, PINNED[name]) for name, path in found.items()) else ()


def _has(path: Path, sha256: str) -> bool:
    return path.is_file() and _sha256(path) == sha256


def require_pinned(jars: Iterable[str], settings: Mapping[str, str]) -> None:
    """Compare jars with the lock file: those of it that the settings ask for, and what was resolved with them alone.

    `jars` are the files as Spark names them. Jars and packages that the user adds are not judged.

    Raises:
        LakeError: a jar has another hash, is missing, or came with ours and is not in the lock file.
    """
    asked = [name.strip() for name in settings["spark.jars.packages"].split(",")]
    ours = {file_name(name): name for name in asked if name in PINNED}
    found = [Path(unquote(urlparse(jar).path)) for jar in jars]
    resolved = {path.parent for path in found if path.name in ours}  # the folder where Spark puts what it resolves
    for path in found:
        if path.parent not in resolved:
            continue
        cache = path.parent.parent / "cache"
        if name := ours.get(path.name):
            digest = _sha256(path)
            if digest != PINNED[name]:
                raise LakeError(
                    f"{path} is not the jar {name} that this version is made for: its sha256 is {digest}, expected"
                    f" {PINNED[name]}; delete it and {cache.joinpath(*name.split(':')[:2])}, then run again"
                )
        elif len(ours) == len(asked) and path.name not in settings.get("spark.jars", ""):
            raise LakeError(
                f"{path} was loaded with {' and '.join(ours.values())}, which do not need it: the repository describes"
                f" them in another way; delete it and {cache}, then run again"
            )
    if missing := sorted(ours.keys() - {path.name for path in found}):
        raise LakeError(
            f"Spark did not load {missing[0]}, so its sha256 cannot be compared; if other jars replace it, leave"
            f" {ours[missing[0]]} out of spark.jars.packages in [spark]"
        )


def _sha256(path: Path) -> str:
    found = path.stat()
    return _sha256_of(path, found.st_size, found.st_mtime_ns)


@cache  # a start asks three times, and takes 0.1 s each time
def _sha256_of(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_name(coordinate: str) -> str:
    """Return the name under which Spark keeps a resolved jar."""
    group, artifact, version = coordinate.split(":")
    return f"{group}_{artifact}-{version}.jar"
