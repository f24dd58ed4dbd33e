"""A description of this host's slots."""

from __future__ import annotations

import platform
from functools import cache

from hermes_queue.sandbox.host.interpreter import OWN_VERSION


@cache
def host_image(python: str | None) -> str:
    """System, kernel and Python of a slot with `python` (None = the worker's own).

    Slots see the host's /usr, so there is no image with a digest.
    """
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        system = platform.system()
    own = python in (None, OWN_VERSION)
    version = platform.python_version() if own else python
    return f"{system}, {platform.release()} {platform.machine()}, Python {version}"
