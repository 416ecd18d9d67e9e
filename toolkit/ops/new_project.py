"""Create the folder of a new user: configuration, dbt project, notebooks, and examples of schedules and CI.

A file of the scaffold named `*.in` loses this ending. Its content is not a module of the toolkit.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from toolkit import __version__
from toolkit.build import project
from toolkit.values.config import DbtConfig, DbtProject
from toolkit.values.errors import ConfigError
from toolkit.values.log_setup import logger
from toolkit.values.resources import FOLDER, SCAFFOLD

_log = logger(__name__)

#: The folder in the examples. The user's own folder replaces it, unless its path needs quotes.
_EXAMPLE = "/srv/shop-lake"
#: The one entry that the folder may already have: `cdc new .` runs from it.
_VENV = ".venv"


def create(folder: Path) -> tuple[Path, ...]:
    """Fill a folder that is missing, empty, or has only `.venv`. Return what was written, relative to the folder.

    Raises:
        ConfigError: the folder is not empty, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - {_VENV}):
        raise ConfigError(f"{folder}: there is something already; name an empty or a new folder")
    shown = str(folder.resolve())
    if not re.fullmatch(r"[\w./+-]+", shown):
        _log.warning("the examples keep another folder", extra={"folder": _EXAMPLE, "needs_quotes": shown})
        shown = _EXAMPLE
    try:
        for source in sorted(path for path in SCAFFOLD.rglob("*") if path.is_file()):
            name = source.relative_to(SCAFFOLD)
            target = folder / ("." + name.name if name.name == "gitignore" else name.as_posix().removesuffix(".in"))
            target.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text(encoding="utf-8").replace(_EXAMPLE, shown)
            text = text.replace("==VERSION", f"=={__version__}")
            target.write_text(text, encoding="utf-8")
        (folder / "notebooks").mkdir()
        for source in (path for path in (FOLDER / "notebooks").glob("[!.]*") if path.is_file()):
            shutil.copyfile(source, folder / "notebooks" / source.name)  # with the modes of the account's own files
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; change its permissions or name another folder") from None
    defaults = DbtConfig()  # whatever the environment says of another folder
    project.ensure(DbtProject(folder.resolve() / defaults.project_dir, defaults.threads))
    written = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return tuple(sorted(path for path in written if path.parts[0] != _VENV))
