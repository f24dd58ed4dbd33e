"""The cheating heuristics of the core see what is done to Harbor tasks."""

from __future__ import annotations

from collections.abc import Sequence

from source_trees import ROOT

from hermes_plugins.harbor import cheats
from hermes_queue.bodies.signs import find_signs
from hermes_queue.models import Message, ToolCall
from hermes_queue.tools.base import make_call


def labels(calls: Sequence[ToolCall]) -> set[str]:
    messages = [Message(role="assistant", tool_calls=tuple(calls))]
    return {each["label"] for each in find_signs({"reason": "graded"}, messages)}


def test_most_cheats_of_harbor_tasks_are_flagged() -> None:
    cases = cheats.cases().values()
    calls = [[each for each in given if isinstance(each, ToolCall)] for given in cases]
    assert sum(bool(labels(each)) for each in calls) / len(cases) > 0.8


def test_the_solutions_of_the_bundled_harbor_tasks_are_not_flagged() -> None:
    solutions = sorted((ROOT / "hermes_plugins/harbor/data").rglob("solution/*.sh"))
    assert len(solutions) > 10
    for path in solutions:
        assert labels([make_call("c", "terminal", command=path.read_text())]) == set(), path
