"""Arrow frees into the C library, which gives memory back, in every process of the toolkit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("module", ["toolkit.lake.worker_daemon", "toolkit.api"])
@pytest.mark.parametrize(("set_to", "used"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_arrow_uses_the_allocator_of_the_c_library_unless_another_is_asked_for(
    module: str, set_to: str | None, used: str
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "ARROW_DEFAULT_MEMORY_POOL"}
    environment |= {} if set_to is None else {"ARROW_DEFAULT_MEMORY_POOL": set_to}
    code = f"import {module}, pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == used
