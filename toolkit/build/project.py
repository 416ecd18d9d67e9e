"""The user's dbt project: made once from the toolkit's own, then theirs to extend."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from toolkit.values.errors import LakeError
from toolkit.values.resources import FOLDER

if TYPE_CHECKING:
    from toolkit.values.config import Config

_TEMPLATE = FOLDER / "dbt_project"
#: What a run writes into a project; it belongs to one lake and is never copied.
_GENERATED = ("target", "logs", "profiles.yml", ".user.yml")


def ensure(config: Config) -> None:
    """Copy the toolkit's dbt project to `[dbt] project_dir` if there is none yet.

    Raises:
        LakeError: the folder cannot be written, or holds something else.
    """
    folder = config.project_dir
    if (folder / "dbt_project.yml").is_file():
        return
    if folder.exists() and any(folder.iterdir()):
        raise LakeError(f"[dbt] project_dir {folder} is not empty and holds no dbt_project.yml; name another folder")
    try:
        shutil.copytree(_TEMPLATE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_GENERATED))
        for generated in ("current", "history"):
            for file in (folder / "models" / generated).iterdir():
                if file.name != ".gitkeep":
                    file.unlink()
    except OSError as error:
        raise LakeError(f"making the dbt project {folder}: {error.strerror or error}") from None
