"""Run `cdc models sync`: generate one dbt model for each table, and dbt's profile."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.build.project import ensure, require_own, set_aside
from toolkit.lake import root_views
from toolkit.lake.proofs import differing_tables
from toolkit.rawlog.plan import Layer
from toolkit.rawlog.states import State, copied, states_at
from toolkit.values.errors import LakeError
from toolkit.values.installed_code import code_identity
from toolkit.values.lake_types import literal, spark_type
from toolkit.values.log_setup import logger
from toolkit.values.names import lake_columns, lake_table, quote_spark, renamed
from toolkit.values.namespaces import Namespaces
from toolkit.values.table import Column, SchemaVersion, TableVersion
from toolkit.values.whole_file import write_whole

if TYPE_CHECKING:
    from toolkit.lake.opened import Lake
    from toolkit.rawlog.roots import Root
    from toolkit.values.config import DbtProject
    from toolkit.values.lake_access import LakeAccess
    from toolkit.values.lsn import Lsn

_log = logger(__name__)
#: Types that have fewer values than the lake's type.
_RANGES = {
    "smallint": (-(1 << 15), (1 << 15) - 1),
    "oid": (0, (1 << 32) - 1),
    "xid": (0, (1 << 32) - 1),
    "cid": (0, (1 << 32) - 1),
    "xid8": (0, (1 << 64) - 1),
}
_SECRET = "DBT_ENV_SECRET_CDC_"
_CALL = re.compile(r"\s*(env_var|ref|var|source|doc)\s*\(")
_PROFILE = Path("profiles.yml")
_HEADER = "made by `cdc models sync`; changes here are lost"


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The changes of a sync. Paths are relative to the dbt project."""

    models: Mapping[int, str]  # names of the tables that have a model, by relid
    tables: tuple[str, ...]  # those of the tables that exist at the source
    written: tuple[str, ...]
    removed: tuple[str, ...]


def sync(lake: Lake, dbt: DbtProject, *, as_of: Lsn | None = None) -> SyncResult:
    """Write the models and `profiles.yml` from the ledger, and remove the models of tables that no longer exist.

    The history of a dropped table is built once more, up to its end. With `as_of` the models are those of the tables
    that existed and were known at that LSN, under their names at that LSN.

    Needs no source connection and no JVM. Files that are already right are not written, so that dbt's partial parsing
    works.

    Raises:
        LakeError: the project's folder is missing or not writable.
    """
    from toolkit.lake import reads

    ledger = lake.reading()
    if as_of is not None:
        then = states_at(ledger, as_of, differing_tables(lake.access, ledger))
        known = [version for version, state in then if state.state == State.OK]
        return write(lake.access, known, root_views.shown_roots(ledger, as_of), dbt=dbt)
    last = ledger.last()
    generation = last.generation if last else None
    done = copied(ledger)
    finished = set(reads.tables(lake.access, lake.access.names.history))
    kept = (v for v in ledger.latest_versions().values() if v.generation == generation and v.table.relid in done)
    tables = [v for v in kept if not v.table.dropped or v.history_name not in finished]
    # dbt would drop a table to create a view of its name.
    taken = set(reads.tables(lake.access, lake.access.names.current))
    return write(lake.access, tables, [r for r in root_views.shown_roots(ledger) if r.name not in taken], dbt=dbt)


def write(
    access: LakeAccess, versions: Iterable[SchemaVersion], roots: Iterable[Root] = (), *, dbt: DbtProject
) -> SyncResult:
    """Write the models of these versions, and the views of roots whose partitions all have a model.

    A dropped table gets only its history, and an unpublished table gets none.

    Raises:
        LakeError: a file of the project cannot be written.
    """
    project = dbt.folder
    require_own(access, project)
    ensure(dbt)
    found = sorted((v for v in versions if v.table.published), key=lambda v: v.history_name)
    there = {version.table.relid: version.history_name for version in found if not version.table.dropped}
    shown = [root for root in roots if all(part.relid in there for part in root.parts)]
    record = access.work_dir / "dbt" / "models"
    made_of = _made_of(access.names, found, shown)
    removed: list[str] = []
    try:
        written = _write(project, {_PROFILE: profile(access, dbt=dbt)})
        # For thousands of tables, generating the files only to find them unchanged takes seconds.
        if not record.is_file() or record.read_bytes() != _state(project, made_of).encode():
            files = _files(access.names, found, shown)
            written += _write(project, files)
            removed = _remove_others(project, files)
            write_whole(record, _state(project, made_of))
    except OSError as error:
        raise LakeError(f"writing models into {project}: {error.strerror}; change its permissions") from None
    models = {v.table.relid: v.history_name for v in found}
    return SyncResult(models, tuple(there.values()), tuple(written), tuple(removed))


def _made_of(kept: Namespaces, versions: Iterable[SchemaVersion], roots: Iterable[Root]) -> str:
    """Return a hash of all that the generated files depend on: the code, the names, and the tables as captured."""
    tables = (f"{version.history_name} {version.payload}" for version in versions)
    views = (f"{r.name} {r.columns} {[part.relid for part in r.parts]} {r.version.payload}" for r in roots)
    return _hash(chain([code_identity(), repr(kept)], tables, views))


def _state(project: Path, made_of: str) -> str:
    """Return a hash of what the generated files are made of, and of the files as the file system knows them now.

    Any program can set the time at which a file was last written, but none the time of its last change (ctime).
    """
    stats = ((path, path.lstat()) for path in _made_files(project))
    return _hash(chain([made_of], (f"{path} {stat.st_ino} {stat.st_size} {stat.st_ctime_ns}" for path, stat in stats)))


def _made_files(project: Path) -> list[Path]:
    """List the files under the names of generated models, in order."""
    return sorted(path for layer in Layer for path in (project / "models" / layer).glob(f"{layer}__*"))


def _hash(texts: Iterable[str]) -> str:
    found = hashlib.sha256()
    for text in texts:
        found.update(f"{text}\n".encode(errors="surrogateescape"))
    return found.hexdigest()


def _files(kept: Namespaces, versions: Sequence[SchemaVersion], roots: Sequence[Root]) -> dict[Path, str]:
    """Make the generated files of these versions and roots, by their paths in the project."""
    files: dict[Path, str] = {}
    for version in versions:
        table, alias = version.table, version.history_name
        for layer in (Layer.HISTORY,) if table.dropped else Layer:
            folder = Path("models") / layer
            files[folder / f"{layer}__{alias}.sql"] = (
                f"{{# {_HEADER} #}}\n{{{{ config(alias='{alias}') }}}}\n{{{{ cdc_{layer}(relid={table.relid}) }}}}\n"
            )
            files[folder / f"{layer}__{alias}.yml"] = _dump(_properties(kept, table, layer, alias))
    for root in roots:
        files |= _view(kept, root)
    return files


def _view(kept: Namespaces, root: Root) -> dict[Path, str]:
    """Write the model of a partitioned table: a view over the models of its partitions."""
    models = [f"{Layer.CURRENT}__{lake_table(part.schema, part.name)}" for part in root.parts]
    text = root_views.query(
        (*root.columns.values(), "_cdc_from_lsn", "_cdc_text"),
        [f"{{{{ ref('{m}') }}}}" for m in models],
        lambda name: _plain(quote_spark(name)),
    )
    table = root.version.table
    columns = tuple(replace(c, published=c.name in root.columns) for c in table.columns)
    path = Path("models") / Layer.CURRENT / f"{Layer.CURRENT}__{root.name}.sql"
    made_of = f"relid={table.relid}, generation={root.version.generation}, schema_id={root.version.schema_id}"
    config = f"{{{{ config(alias='{root.name}', materialized='view') }}}}{{% do cdc_require_root({made_of}) %}}"
    described = _properties(kept, replace(table, columns=columns), Layer.CURRENT, root.name)
    return {path: f"{{# {_HEADER} #}}\n{config}\n{text}\n", path.with_suffix(".yml"): _dump(described)}


def _write(project: Path, files: Mapping[Path, str]) -> list[str]:
    """Write the files that differ, and return their paths."""
    written = []
    for path, text in files.items():
        target = project / path
        if not target.is_file() or target.read_bytes() != text.encode():
            if target.is_file() and path != _PROFILE:
                _remove(project, path)
            # A profile has the settings of [spark].
            write_whole(target, text, mode=0o600 if path == _PROFILE else None)
            written.append(str(path))
    return written


def _remove_others(project: Path, files: Collection[Path]) -> list[str]:
    """Remove the models of the layers that are not among these files, and return their paths."""
    found = (path.relative_to(project) for path in _made_files(project))
    others = [path for path in found if path not in files]
    for path in others:
        _remove(project, path)
    return [str(path) for path in others]


def _remove(project: Path, path: Path) -> None:
    """Delete a generated file. One that the toolkit has not written is kept aside."""
    if _HEADER.encode() in (project / path).read_bytes():
        (project / path).unlink()
        return
    set_aside(project, path)
    _log.warning("a file under the name of a model was moved to `replaced`", extra={"file": str(project / path)})


def profile(access: LakeAccess, *, dbt: DbtProject) -> str:
    """Return the text of `profiles.yml`: dbt's session method with the same settings as the toolkit's own session."""
    from toolkit.lake.session import spark_settings

    # The file names variables of the environment instead of secrets.
    named = {name: f"{{{{ env_var('{variable}') }}}}" for name, variable, _ in secret_variables(access)}
    settings = {name: _plain(value) for name, value in spark_settings(access).items()} | named
    return _dump(
        {
            "cdc": {
                "target": "session",
                "outputs": {
                    "session": {
                        "type": "spark",
                        "method": "session",
                        "host": "session",
                        "schema": access.names.staging,
                        "threads": dbt.threads,
                        "server_side_parameters": settings,
                    }
                },
            }
        }
    )


def secret_variables(access: LakeAccess) -> list[tuple[str, str, str]]:
    """Return the secrets of the catalog and of a cluster: Spark's setting, the variable that dbt reads, the value.

    dbt shows no value of a variable whose name begins like these.
    """
    from toolkit.lake.cluster import AUTHENTICATION_SECRET
    from toolkit.lake.lake_catalog import secrets_of

    found = {
        f"spark.sql.catalog.{access.lake.catalog}.{key}": (key, value) for key, value in secrets_of(access).items()
    }
    if AUTHENTICATION_SECRET in access.spark:
        found[AUTHENTICATION_SECRET] = (AUTHENTICATION_SECRET, access.spark[AUTHENTICATION_SECRET])
    return [
        (setting, f"{_SECRET}{re.sub('[^A-Z0-9]+', '_', key.upper())}", value)
        for setting, (key, value) in found.items()
    ]


def _properties(kept: Namespaces, table: TableVersion, layer: Layer, alias: str) -> dict[str, Any]:
    shown = [column for column in table.columns if column.published]
    names = lake_columns([(c.attnum, c.name) for c in table.columns])
    others = renamed([(c.attnum, c.name) for c in table.columns])
    key = table.key_attnums if table.keyed else ()
    columns: list[dict[str, Any]] = []
    for column in shown:
        entry: dict[str, Any] = {"name": _plain(names[column.attnum]), "quote": True, "data_type": spark_type(column)}
        notes = [f"{column.type}" + (f", named {column.name!r} at the source" if column.attnum in others else "")]
        entry["description"] = _plain(". ".join([*([column.comment] if column.comment else []), ", ".join(notes)]))
        # A text that does not fit the column's type is in _cdc_text. Then NULL in the typed column is no error.
        exact = f"_cdc_text is null or try_element_at(_cdc_text, {literal(names[column.attnum])}) is null"
        tests: list[Any] = []
        if column.not_null:
            tests.append({"not_null": {"config": {"where": _plain(exact)}}})
        if key == (column.attnum,):
            tests.append({"unique": {"config": {"where": _plain(exact)}}})
        tests += _limits(column)
        if tests and layer == Layer.CURRENT:
            entry["data_tests"] = tests
        columns.append(entry)
    columns += [
        {"name": "_cdc_from_lsn", "description": "End LSN of the change that made the row what it is."},
        {"name": "_cdc_text", "description": "Source text of values that their typed column cannot carry, by column."},
    ]
    if layer == Layer.HISTORY:
        columns += [
            {
                "name": "_cdc_to_lsn",
                "description": "LSN from which the row version is valid no more; NULL if it still is.",
            },
            {
                "name": "_cdc_doubtful",
                "description": "Whether the version overlaps a gap that no baseline has repaired yet.",
            },
        ]
    kind = "Rows" if layer == Layer.CURRENT else "Row versions by LSN"
    comment = f" {table.comment}" if table.comment else ""
    name = f"{table.identifier}, which was dropped" if table.dropped else table.identifier
    model = {
        "name": f"{layer}__{alias}",
        "description": _plain(f"{kind} of {name}.{comment}"),
        "columns": columns,
    }
    if layer == Layer.CURRENT and len(key) > 1 and set(key) <= {c.attnum for c in shown}:
        named = [_plain(quote_spark(names[attnum])) for attnum in key]
        model["data_tests"] = [{"cdc_unique": {"arguments": {"columns": named}}}]
    if layer == Layer.HISTORY and not table.dropped:
        model["data_tests"] = [
            {"cdc_as_proven": {"arguments": {"relid": table.relid, "current": f"ref('{Layer.CURRENT}__{alias}')"}}}
        ]
    described: dict[str, Any] = {"version": 2, "models": [model]}
    if layer == Layer.CURRENT:
        described["exposures"] = [
            {
                "name": f"published__{alias}",
                "type": "application",
                "label": f"{kept.published}.{alias}",
                "description": "View of the rows that the last green check of the table has proven.",
                "depends_on": [f"ref('{layer}__{alias}')"],
                "owner": {"name": "cdc check"},
            }
        ]
    return described


def _limits(column: Column) -> list[dict[str, Any]]:
    """List the dbt tests for values that the source's type forbids and the lake's type would hold."""
    if column.type_kind == "e":
        labels = [_plain(literal(label)[1:-1]) for _, label in column.enum_labels]
        return [{"accepted_values": {"arguments": {"values": labels}}}]
    type_ = column.base
    if type_ in _RANGES and column.type_kind in "bd":
        low, high = _RANGES[type_]
        return [{"cdc_between": {"arguments": {"low": low, "high": high}}}]
    sized = re.fullmatch(r"(character varying|character|bit varying|bit)\((\d+)\)", type_)
    if sized and column.type_kind in "bd":
        low = 0 if sized[1].endswith("varying") else int(sized[2])
        return [{"cdc_between": {"arguments": {"low": low, "high": int(sized[2]), "length": True}}}]
    return []


def _plain(text: str) -> str:
    """Write a text that dbt would change as one expression of its own.

    dbt renders models and yml files as Jinja, and what looks like a call of `ref` in an argument of a test too.
    """
    if not any(opening in text for opening in ("{{", "{%", "{#")) and not _CALL.match(text):
        return text
    return "{{ " + json.dumps(text, ensure_ascii=False) + " }}"


def _dump(data: dict[str, Any]) -> str:
    import yaml

    # libyaml writes thousands of files in seconds, not in minutes. Python's own writer is for installations without it.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    return f"# {_HEADER}\n" + text
