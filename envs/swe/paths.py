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


def check_node_id(test_id: str, column: str) -> None:
    """Raise ValueError, with the column, if the id does not begin with a file in the repository."""
    try:
        path = relative(file_of(test_id))
    except ValueError as error:
        raise ValueError(f"{column}: {error}") from error
    if path.startswith("-") or any(ord(character) < 32 for character in path):
        raise ValueError(f"{column}: {test_id!r} does not begin with the path of a test file")
