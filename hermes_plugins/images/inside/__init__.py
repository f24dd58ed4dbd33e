"""Programs that work on a tree of files, as root of a user namespace; see `StepRunner.edit`.

tree.py     the program: unpack, place, pack, make directories, read, measure, remove
__init__.py its text
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def program() -> str:
    """Text of `tree.py`, for `StepRunner.edit`."""
    return files(__name__).joinpath("tree.py").read_text(encoding="utf-8")
