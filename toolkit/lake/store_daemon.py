"""Run Spark's Python daemon with what reads and writes files of an object store imported too."""

from __future__ import annotations

from toolkit.lake import worker_daemon
from toolkit.values.installed_code import code_identity

if __name__ == "__main__":
    code_identity()  # before the forks, which then know it: on a cluster, each task compares it
    worker_daemon.run("pyiceberg.io.pyarrow")
