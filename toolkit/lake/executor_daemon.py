"""Run Spark's Python daemon on an executor of a cluster, with what reads the object store imported too."""

from __future__ import annotations

from toolkit.lake import worker_daemon
from toolkit.values.installed_code import code_identity

if __name__ == "__main__":
    code_identity()  # before the forks, which then know it
    worker_daemon.run("pyiceberg.io.pyarrow")
