"""Make the folder of a new user: configuration, dbt project, notebooks, and examples of schedules."""

from __future__ import annotations

import shutil
from pathlib import Path

from toolkit.build import project
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError
from toolkit.values.resources import FOLDER, SCAFFOLD

#: The folder that the examples name; each stands for the user's own.
_EXAMPLE = "/srv/shop-lake"


def create(folder: Path) -> tuple[Path, ...]:
    """Fill an empty or missing folder. Gives what was written, relative to it.

    Raises:
        ConfigError: the folder is not empty, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: there is something already; name an empty or a new folder")
    try:
        for source in sorted(path for path in SCAFFOLD.rglob("*") if path.is_file()):
            name = source.relative_to(SCAFFOLD)
            target = folder / ("." + name.name if name.name == "gitignore" else name)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text(encoding="utf-8").replace(_EXAMPLE, str(folder.resolve()))
            target.write_text(text, encoding="utf-8")
        shutil.copytree(FOLDER / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; change its permissions or name another folder") from None
    project.ensure(Config(root=folder))
    return tuple(sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file()))


__all__ = ["create"]
