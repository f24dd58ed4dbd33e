"""With what a record was made, as far as this process can tell."""

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
"""Module -> distribution: what decides how jobs travel, models are called and slots are made."""


def packages() -> dict[str, str]:
    """Versions of Python, of ours, and of the libraries that this process has loaded."""
    loaded = {name: _version(name) for module, name in _LIBRARIES.items() if module in sys.modules}
    return {
        "hermes-queue": package_version(),
        "python": platform.python_version(),
        **{name: found for name, found in loaded.items() if found},
    }


def package_version() -> str:
    """Our version, or "source" when run from a checkout that is not installed."""
    return _version("hermes-queue") or "source"


@cache
def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
