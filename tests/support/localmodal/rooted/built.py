"""The package `localmodal_images` among the tests of the plugin `images`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from hermes_queue.errors import IsolationUnavailable

FOLDER = Path(__file__).parents[3] / "plugins" / "images" / "support"


def with_images() -> Any:
    """The package. Raises IsolationUnavailable: there is no such plugin."""
    if not FOLDER.is_dir():
        raise IsolationUnavailable("they need the plugin images")
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return import_module("localmodal_images")
