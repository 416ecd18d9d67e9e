"""The demo's JVM starts with settings that hold for its whole run."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

import pytest

from toolkit.demo import lake_sections
from toolkit.lake.java import find_java

pytestmark = pytest.mark.unit


def test_the_jvm_of_the_demo_has_room_for_generated_code() -> None:
    """With 48 MB it ended in a build of the demo: "Out of space in CodeCache for adapters", exit code 50."""
    options = tomllib.loads(lake_sections.LOCAL)["spark"]["spark.driver.extraJavaOptions"]
    command = [str(find_java()), *options.split(), "-XX:+PrintFlagsFinal", "-version"]
    own = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}  # which the tests set
    flags = subprocess.run(command, env=own, capture_output=True, text=True, check=True).stdout
    found = re.search(r"ReservedCodeCacheSize += (\d+)", flags)
    assert found is not None and int(found[1]) >= 240 << 20
