"""The library that reads Dockerfiles, an extra of its own."""

from __future__ import annotations

from typing import Any

from hermes_queue.errors import ConfigurationError


def dockerfile_library() -> Any:
    """`e2b_dockerfile_utils`: BuildKit's grammar in Python.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    try:
        import e2b_dockerfile_utils
    except ImportError as error:
        raise ConfigurationError(
            f"images built from Dockerfiles need the extra `images` ({error}): "
            "pip install 'hermes-queue[images]'"
        ) from error
    return e2b_dockerfile_utils
