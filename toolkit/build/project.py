"""Keep the user's dbt project at the toolkit's version. Macros, sources and shared models belong to the toolkit.

`dbt_project.yml` is created once and then belongs to the user. So does every file that the toolkit did not write.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.lake import report_copies
from toolkit.rawlog.plan import Layer
from toolkit.values.errors import LakeError
from toolkit.values.log_setup import logger
from toolkit.values.resources import FOLDER
from toolkit.values.whole_file import write_whole

if TYPE_CHECKING:
    from toolkit.values.config import DbtProject
    from toolkit.values.lake_access import LakeAccess

_log = logger(__name__)

_TEMPLATE = FOLDER / "dbt_project"
_SETTINGS = Path("dbt_project.yml")
_PROFILE = Path("profiles.yml")
#: Files that a new project gets, and that belong to the user afterwards.
_ONCE = (_SETTINGS, Path(".gitignore"))
#: The file that lists what the toolkit wrote, with the digest of each file. It belongs to the project.
_RECORD = Path(".toolkit.json")
#: Folder for files that would be lost otherwise. dbt does not look there.
_ASIDE = Path("replaced")
#: Parts of a project that dbt and the toolkit make, and that belong neither to the user nor to the toolkit's files.
_UNREAD = {".gitignore", ".toolkit.json", ".user.yml", "profiles.yml", "replaced", "target", "logs", "dbt_packages"}
#: Folders of the toolkit's files, and their subfolders that `cdc models sync` fills.
_TOPS = ("macros", "models")
_GENERATED = {("models", str(layer)) for layer in Layer}
_KINDS = (".sql", ".yml")
#: Settings with the folders that dbt reads, and dbt's own defaults of them.
_PATHS = {f"{top.removesuffix('s')}-paths": [top] for top in _TOPS}
#: Settings of which a run needs what the toolkit's own project has.
_NEEDED = ("name", "profile", "on-run-start", "on-run-end", "models", "flags", *_PATHS)
#: dbt's variable with the LSN that is built.
AS_OF = "as_of_lsn"
#: What the last run of dbt did, and what it read.
_RESULTS = "run_results.json"
_ARTIFACTS = ("manifest.json", _RESULTS)
_MADE = re.compile(r"\{%-?\s*(?:macro|test|materialization)\s+(\w+)")


def ensure(dbt: DbtProject) -> None:
    """Create the project of `[dbt] project_dir` from the toolkit's own, or upgrade it to the toolkit's version.

    A changed file of the toolkit, and a file that defines a macro of the toolkit again, is moved to the folder
    `replaced`. A line of the log names it. A project whose settings are refused is left as it is.

    Raises:
        LakeError: the folder is not writable or has other content, `dbt_project.yml` lacks what a run needs, or it has
            the variable by which an earlier LSN is built.
    """
    folder = dbt.folder
    if folder.resolve() == _TEMPLATE.resolve():
        return
    new = not (folder / _SETTINGS).is_file()
    if new and folder.exists() and any(folder.iterdir()):
        raise LakeError(f"[dbt] project_dir {folder} is not empty and holds no dbt_project.yml; name another folder")
    try:
        if not new:
            _require_settings(folder)
        # First, so that the next run knows a project that was written in part. The record is written last.
        begun = () if (folder / _RECORD).is_file() else _ONCE
        for path in (path for path in begun if not (folder / path).is_file()):
            write_whole(folder / path, (_TEMPLATE / path).read_bytes())
        written, aside = _upgrade(folder)
    except OSError as error:
        raise LakeError(
            f"writing the dbt project {folder}: {error.strerror or error}; free space there or change its permissions"
        ) from None
    if written and not new:
        kept = {"kept_in_replaced": [path.as_posix() for path in aside]} if aside else {}
        _log.warning("dbt project upgraded", extra={"project": str(folder), "files": written, **kept})


def require_own(access: LakeAccess, folder: Path) -> None:
    """Refuse the project of another source of the lake: each would build its tables from the plans of the other.

    Raises:
        LakeError: the profile, which `cdc models sync` writes, is of another prefix.
    """
    import yaml

    try:
        found = yaml.safe_load((folder / _PROFILE).read_bytes())
        schema = str(found["cdc"]["outputs"]["session"]["schema"])
    except (OSError, yaml.YAMLError, KeyError, TypeError):  # there is none yet, or the next sync replaces it
        return
    if schema != access.names.staging:
        raise LakeError(
            f"[dbt] project_dir {folder}: its {_PROFILE} is of the source with schema {schema!r}, and this one has"
            f" {access.names.staging!r} by [lake] prefix; name another folder, one for each source, or remove"
            f" {folder / _PROFILE} if the prefix was changed"
        )


def owned(path: Path) -> bool:
    """Return whether a file of the project, by its path in it, belongs to the toolkit or is generated by it."""
    return _generated(path) or path in _shipped()


def of_user(node: Any) -> bool:
    """Return whether a model or hook of dbt is the user's. The hooks of every project are in `dbt_project.yml`.

    A package is the user's, whatever the paths of its files are.
    """
    settings = _settings(_TEMPLATE)
    if node.package_name != settings["name"]:
        return True
    if node.resource_type == "operation":
        return node.raw_code not in (*settings["on-run-start"], *settings["on-run-end"])
    return not owned(Path(node.original_file_path))


def of_table(node: Any) -> bool:
    """Return whether a model of dbt is a generated one, which builds a table."""
    return not of_user(node) and _generated(Path(node.original_file_path))


def own_files(folder: Path) -> list[Path]:
    """List the user's files of a project that dbt may read, by their paths in it."""
    files = (path.relative_to(folder) for path in sorted(folder.rglob("*.*")) if path.is_file())
    own = (path for path in files if path.parts[0] not in _UNREAD and not owned(path))
    return [p for p in own if p != _SETTINGS or (folder / p).read_bytes() != (_TEMPLATE / p).read_bytes()]


def copy_shared(folder: Path, target: Path) -> None:
    """Copy a project without the user's files: only the toolkit's files and the generated models."""
    ours = (path for top in _TOPS for path in sorted((folder / top).rglob("*.*")) if owned(path.relative_to(folder)))
    for path in ours:
        write_whole(target / path.relative_to(folder), path.read_bytes())
    write_whole(target / _SETTINGS, (_TEMPLATE / _SETTINGS).read_bytes())


def write_part(access: LakeAccess, tables: Collection[str], *, dbt: DbtProject) -> Path:
    """Write a project with the toolkit's files and the generated models of some tables, and return its folder.

    dbt reads and parses all files of a project before it runs a single model.
    """
    folder = access.work_dir / "dbt" / "part"
    files = {**_shipped(), _SETTINGS: (_TEMPLATE / _SETTINGS).read_bytes()}
    for path in (Path(*top) / f"{top[1]}__{table}{kind}" for top in _GENERATED for table in tables for kind in _KINDS):
        if (dbt.folder / path).is_file():
            files[path] = (dbt.folder / path).read_bytes()
    for found in (file for top in _TOPS for file in (folder / top).rglob("*.*") if file.is_file()):
        if found.relative_to(folder) not in files:
            found.unlink()
    for path, text in files.items():
        if not (folder / path).is_file() or (folder / path).read_bytes() != text:
            write_whole(folder / path, text)
    return folder


def keep_results(access: LakeAccess, folder: Path, *, dbt: DbtProject) -> None:
    """Put dbt's results of a run where a run in the project leaves them, and copy them to `[lake] reports`."""
    made, kept = _target(folder), _target(dbt.folder)
    if made != kept and (made / _RESULTS).is_file():
        write_whole(kept / _RESULTS, (made / _RESULTS).read_bytes())
    report_copies.copy(access, "dbt", made, [name for name in _ARTIFACTS if (made / name).is_file()])


def has_shared_views(access: LakeAccess) -> bool:
    """Return whether the lake has the views of the shared models, made from the files of this version."""
    from toolkit.lake import reads

    views = (
        path.with_suffix("").parts[1:] for path in _shipped() if path.suffix == ".sql" and path.parts[0] == "models"
    )
    try:
        current = _views_record(access).read_bytes() == _shipped_digest().encode()
    except FileNotFoundError:
        return False
    return current and all(name in reads.tables(access, schema, "VIEW") for schema, name in views)


def record_shared_views(access: LakeAccess) -> None:
    """Record that a run of dbt has made the views of the shared models from the files of this version."""
    write_whole(_views_record(access), _shipped_digest().encode())


def _views_record(access: LakeAccess) -> Path:
    return access.work_dir / "dbt" / "shared-views"


def ran_dbt(access: LakeAccess) -> bool:
    """Return whether the last build needed dbt, whose import takes seconds: the next one then probably needs it too."""
    return not _needless(access).is_file()


def record_dbt(access: LakeAccess, *, needed: bool) -> None:
    """Record whether a build needed dbt."""
    with suppress(OSError):  # it only decides when dbt is imported
        if needed:
            _needless(access).unlink(missing_ok=True)
        else:
            write_whole(_needless(access), "")


def _needless(access: LakeAccess) -> Path:
    return access.work_dir / "dbt" / "not-needed"


def _shipped_digest() -> str:
    return _digest(json.dumps(_shipped_digests(), sort_keys=True).encode())


def _shipped_digests() -> dict[str, str]:
    return {path.as_posix(): _digest(text) for path, text in _shipped().items()}


@cache
def _shipped() -> dict[Path, bytes]:
    """Return the toolkit's own files by their paths, without files that a run has left in a checkout."""
    files = (path.relative_to(_TEMPLATE) for top in _TOPS for path in sorted((_TEMPLATE / top).rglob("*.*")))
    return {path: (_TEMPLATE / path).read_bytes() for path in files if not _generated(path)}


def _generated(path: Path) -> bool:
    return path.parts[:-1] in _GENERATED and path.name.lstrip(".").startswith(f"{path.parts[1]}__")


def _upgrade(folder: Path) -> tuple[int, list[Path]]:
    """Write the files that differ from the toolkit's. Return the number of files, and those that were moved aside."""
    shipped, recorded = _shipped(), _recorded(folder)
    macros = {name for text in shipped.values() for name in _MADE.findall(text.decode())}
    outdated, aside = [], []
    for path in _others(folder):
        found = (folder / path).read_bytes()
        if shipped.get(path) == found:
            continue
        if recorded.get(path.as_posix()) == _digest(found):
            outdated.append(path)
        elif path in shipped or macros & set(_MADE.findall(found.decode(errors="replace"))):
            aside.append(path)
    for path in outdated:
        (folder / path).unlink()
    for path in aside:
        set_aside(folder, path)
    missing = [path for path in shipped if not (folder / path).is_file()]
    for path in missing:
        write_whole(folder / path, shipped[path])
    record = _shipped_digests()
    if record != recorded:
        write_whole(folder / _RECORD, json.dumps(record, indent=1).encode())
    return len({*outdated, *aside, *missing}), aside


def _others(folder: Path) -> list[Path]:
    """List the files in the folders of the toolkit's files, without the generated ones, which may be thousands."""
    walked = ((Path(parent).relative_to(folder), names) for top in _TOPS for parent, _, names in os.walk(folder / top))
    found = (inside / name for inside, names in walked for name in names if "." in name)
    return sorted(path for path in found if not _generated(path) and (folder / path).is_file())


def set_aside(folder: Path, path: Path) -> None:
    """Move a file that would be lost otherwise to the folder `replaced` of a project."""
    (folder / _ASIDE / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).replace(folder / _ASIDE / path)


def _recorded(folder: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads((folder / _RECORD).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _target(folder: Path) -> Path:
    """Return the folder in which dbt leaves what it makes of a project."""
    return folder / str(_settings(folder).get("target-path") or "target")


def _require_settings(folder: Path) -> None:
    wanted, found = _settings(_TEMPLATE), _settings(folder)
    missing = list(_missing({name: wanted[name] for name in _NEEDED}, found))
    if missing:
        raise LakeError(f"{folder / _SETTINGS} lacks {', '.join(missing)}; copy it from {_TEMPLATE / _SETTINGS}")
    variables = found.get("vars")
    scopes = (variables, variables.get(wanted["name"])) if isinstance(variables, dict) else ()
    if any(isinstance(scope, dict) and AS_OF in scope for scope in scopes):
        raise LakeError(
            f"{folder / _SETTINGS}: {AS_OF} in vars would only name the tables after an earlier LSN; remove it there,"
            " and use --as-of-lsn"
        )


def _missing(wanted: Any, found: Any, name: str = "") -> Iterator[str]:
    """Name the settings of `wanted` that `found` does not have."""
    if isinstance(wanted, dict):
        inner = found if isinstance(found, dict) else {}
        for key, value in wanted.items():
            yield from _missing(value, inner.get(key), f"{name}.{key}" if name else str(key))
    elif isinstance(wanted, list):
        yield from (f"{item!r} in {name}" for item in wanted if item not in (found or ()))
    elif wanted != found:
        yield name


def _settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a project, with dbt's defaults of the folders that it reads."""
    import yaml

    try:
        found = yaml.safe_load((folder / _SETTINGS).read_bytes()) or {}
    except yaml.YAMLError as error:
        stated = " ".join(str(error).split())
        raise LakeError(f"{folder / _SETTINGS} is not valid YAML: {stated}; correct it there") from None
    if not isinstance(found, dict):
        raise LakeError(f"{folder / _SETTINGS} holds no settings; copy it from {_TEMPLATE / _SETTINGS}")
    return _PATHS | found
