"""Paths inside a repository, as in rows and patches."""

from __future__ import annotations

from functools import lru_cache
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator


@lru_cache(maxsize=8192)  # rows have thousands of tests in few files
def relative(path: str) -> str:
    """Return `path` if it is relative, normalised and inside the repository.

    Raises:
        ValueError: it is not.
    """
    pure = PurePosixPath(path)
    inside = path and not pure.is_absolute() and ".." not in pure.parts and "\0" not in path
    if not inside or str(pure) != path or ".git" in pure.parts:
        raise ValueError(f"{path!r} is not a plain relative path inside the repository")
    return path


RelativePath = Annotated[str, AfterValidator(relative)]


def file_of(test_id: str) -> str:
    """The file part of a pytest node id."""
    return test_id.partition("::")[0]
