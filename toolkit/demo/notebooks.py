"""Run one of the notebooks with parameters and keep it as a page."""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.values.errors import CdcError, ConfigError
from toolkit.values.process_env import environment
from toolkit.values.resources import FOLDER, ROOT

if TYPE_CHECKING:
    from toolkit.values.config import Config

NOTEBOOKS = FOLDER / "notebooks"
#: The page without the scripts that nbconvert loads from the network. The page does not need them.
_PAGE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}"""

#: A kernel is interrupted before it ends, and may report that as an error. What a cell raises is shown all the same.
_QUIET = ["--log-level=CRITICAL"]


def run(config: Config, name: str, parameters: Mapping[str, object], out: Path) -> Path:
    """Execute `notebooks/<name>.ipynb` and write it to `out` as HTML, with the executed notebook beside it.

    `config_path` is `cdc.toml` of the configuration unless `parameters` names another file.

    Raises:
        ConfigError: there is no such notebook.
        CdcError: a cell failed, with the cell's own message; or the extra `notebooks` is not installed.
    """
    if importlib.util.find_spec("papermill") is None:
        raise CdcError('notebook: package papermill is not installed; run pip install "cdc-toolkit[notebooks]"')
    source = NOTEBOOKS / f"{name}.ipynb"
    if not source.is_file():
        known = ", ".join(sorted(p.stem for p in NOTEBOOKS.glob("*.ipynb")))
        raise ConfigError(f"no notebook {name!r}; there are {known}")
    given = {"config_path": str(config.root / "cdc.toml")} | dict(parameters)
    executed = out.with_suffix(".ipynb")
    out.parent.mkdir(parents=True, exist_ok=True)
    # The kernel's process imports the same toolkit as this process.
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with (
        warnings.catch_warnings(),
        environment({"PYTHONPATH": search}),
        tempfile.TemporaryDirectory(prefix="cdc-kernel-") as folder,
    ):
        warnings.simplefilter("ignore")  # warnings of papermill and nbconvert
        from jupyter_client.manager import AsyncKernelManager
        from papermill import PapermillExecutionError, execute_notebook

        class LocalKernel(AsyncKernelManager):
            """Use sockets in the file system: a port on loopback is open to every user of the machine."""

            transport = "ipc"
            ip = f"{folder}/kernel"  # a short path, because socket paths have at most 107 bytes

        try:
            notebook = execute_notebook(
                source, executed, parameters=given, kernel_name="python3", progress_bar=False, cwd=config.root,
                kernel_manager_class=LocalKernel, extra_arguments=_QUIET,
            )  # fmt: skip
        except PapermillExecutionError as error:
            raise CdcError(f"notebook {name}: {error.ename}: {error.evalue}; see {executed}") from None
        page = as_page(notebook)
    out.write_text(page, encoding="utf-8")
    return out


def as_page(notebook: Any) -> str:
    """Render an executed notebook as an HTML page that loads nothing."""
    from nbconvert import HTMLExporter

    logging.getLogger("traitlets").setLevel(logging.ERROR)  # charts need no alt text: title and axes say it
    page, _ = HTMLExporter(template_name="lab", raw_template=_PAGE).from_notebook_node(notebook)
    return str(page)
