"""Run Spark's Python daemon on an executor of a cluster, with what reads the object store imported too."""

from __future__ import annotations

from toolkit.lake import pandas_on_demand, worker_daemon
from toolkit.values.installed_code import code_identity

if __name__ == "__main__":
    pandas_on_demand.prepare_worker()
    import pyiceberg.io.pyarrow  # noqa: F401

    code_identity()  # before the forks, which then know it
    worker_daemon.run()
