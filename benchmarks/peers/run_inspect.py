"""Inspect AI: samples whose solver and scorer do nothing. Usage: run_inspect.py COUNT AT_ONCE.

Runs in a virtual environment of its own; prints a turn as JSON.
"""

# mypy: ignore-errors

import json
import os
import sys
import time

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, Target, mean, scorer
from inspect_ai.solver import Generate, TaskState, solver


@solver
def nothing():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        return state

    return solve


@scorer(metrics=[mean()])
def one():
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=1.0)

    return score


def run(count: int, at_once: int) -> None:
    question = "How many eggs are two dozen?"
    samples = [Sample(input=question, target="24", id=number) for number in range(count)]
    task = Task(dataset=MemoryDataset(samples), solver=nothing(), scorer=one())
    [log] = eval(task, model="mockllm/model", max_samples=at_once, display="none", log_dir="logs")
    if log.status != "success" or log.results.completed_samples != count:
        raise SystemExit(f"{log.status}: {log.error}")


def main() -> None:
    count, at_once = map(int, sys.argv[1:])
    run(at_once, at_once)
    began, cpu = time.perf_counter(), sum(os.times()[:4])
    run(count, at_once)
    wall_s, cpu_s = time.perf_counter() - began, sum(os.times()[:4]) - cpu
    print(json.dumps({"count": count, "wall_s": wall_s, "cpu_s": cpu_s}))


if __name__ == "__main__":
    main()
