"""Versions of the software with which this process makes records."""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_LIBRARIES = {
    "celery": "celery",
    "kombu": "kombu",
    "redis": "redis",
    "openai": "openai",
    "modal": "modal",
    "renderers": "renderers",
}
"""Module -> distribution of the libraries that carry jobs, call models and make slots."""


def packages() -> dict[str, str]:
    """Return the versions of Python, of this package, and of the libraries that are loaded."""
    loaded = {name: _version(name) for module, name in _LIBRARIES.items() if module in sys.modules}
    return {
        "hermes-queue": package_version(),
        "python": platform.python_version(),
        **{name: found for name, found in loaded.items() if found},
    }


def package_version() -> str:
    """Return this package's version, or "source" if it runs from a checkout."""
    return _version("hermes-queue") or "source"


@cache
def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
