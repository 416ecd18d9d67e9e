"""`cdc init` in a process of its own, to be killed: `python -m tests.postgres.init_process CDC_TOML`.

Every table is a batch of its own and is copied by workers in small pieces, however small it is; and not too fast.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from tests import commands
from tests.support_lake import without_jvm
from toolkit.capture import copy
from toolkit.cli.output import plain
from toolkit.values import config
from toolkit.values.progress import Stage

_counted = Stage.add


def _slowly(stage: Stage, *counted: Any) -> None:
    time.sleep(0.1)  # a block; the driver cannot commit the table before
    _counted(stage, *counted)


if __name__ == "__main__":
    without_jvm()
    copy._WORKERS_FROM = 0
    copy._GROUP_BYTES = 1
    copy._LEAST_PIECE = 1 << 20
    Stage.add = _slowly  # type: ignore[method-assign, assignment]
    print(json.dumps(plain(commands.init(config.load(sys.argv[1])))))
