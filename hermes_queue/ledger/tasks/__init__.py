"""What is remembered of tasks across runs, by env and hash of the row.

lines.py     tasks as lines of a file, checked when they come back
memory.py    read, add, list, import and forget
observed.py  what finished trajectories say of their tasks, until it is added
task.py      one task, as Redis has it
"""

from hermes_queue.ledger.tasks.memory import TaskMemory
from hermes_queue.ledger.tasks.observed import Observation, Observations
from hermes_queue.ledger.tasks.task import (
    PassRate,
    Solver,
    SolverStats,
    Spread,
    Task,
    TaskCause,
    band_of,
    member_of,
    solver_of,
)

__all__ = [
    "Observation",
    "Observations",
    "PassRate",
    "Solver",
    "SolverStats",
    "Spread",
    "Task",
    "TaskCause",
    "TaskMemory",
    "band_of",
    "member_of",
    "solver_of",
]
