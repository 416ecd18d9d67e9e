"""Stand-ins for the two names of Airflow that the example of a DAG imports; the package is large and not installed."""

from __future__ import annotations

import sys
from types import ModuleType, TracebackType
from typing import Any, ClassVar

import pytest


class Dag:
    """Records the tasks that are made inside of it."""

    made: ClassVar[list[Dag]] = []

    def __init__(self, dag_id: str, **settings: Any) -> None:
        self.dag_id, self.settings = dag_id, settings
        self.tasks: list[BashOperator] = []

    def __enter__(self) -> Dag:
        self.made.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the newest open for who asks for its tasks."""


class BashOperator:
    """Holds what it was made with."""

    def __init__(self, *, task_id: str, bash_command: str, **settings: Any) -> None:
        self.task_id, self.bash_command, self.settings = task_id, bash_command, settings
        Dag.made[-1].tasks.append(self)


def plant_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `airflow` be imported as far as the example needs it."""
    names = "airflow", "airflow.sdk", "airflow.providers.standard.operators.bash"
    for name in (*names, "airflow.providers", "airflow.providers.standard", "airflow.providers.standard.operators"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["airflow.sdk"], "DAG", Dag, raising=False)
    monkeypatch.setattr(sys.modules[names[2]], "BashOperator", BashOperator, raising=False)
