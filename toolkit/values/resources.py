"""Read the statements, the dbt project and the notebooks that the package carries.

`toolkit/resources` links to the folders at the top of the repository; a wheel holds their files in the same place.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

_PACKAGE = Path(str(files("toolkit")))
#: The folder that holds the package: the repository, or the environment's site-packages.
ROOT = _PACKAGE.parent
#: The folder that holds `sql`, `dbt_project` and `notebooks`.
FOLDER = _PACKAGE / "resources"
#: What `cdc new` copies: a configuration with comments, and examples of schedules.
SCAFFOLD = _PACKAGE / "scaffold"


@cache
def load(name: str) -> str:
    """Return the text of `sql/<name>.sql`."""
    return (FOLDER / "sql" / f"{name}.sql").read_text(encoding="utf-8")
