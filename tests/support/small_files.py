"""A disk that is full, for one process: no file can grow beyond a size."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ONLY_SMALL_FILES = "import small_files; small_files.only({})"
"""Python code for a process of its own; takes the size in bytes."""


def only(size_bytes: int) -> tuple[int, int]:
    """Let no file of this process grow beyond `size_bytes`; returns the former limits."""
    # What is imported under the limit would be cached cut short, and fail in later processes.
    sys.dont_write_bytecode = True
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, former[1]))
    return former


@contextmanager
def small_files(size_bytes: int) -> Iterator[None]:
    """`only`, for the time of a `with` statement."""
    caching = sys.dont_write_bytecode
    former = only(size_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
        sys.dont_write_bytecode = caching
