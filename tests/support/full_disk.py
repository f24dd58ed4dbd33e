"""A directory whose disk is full, for one command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_FULL = 'mount -t tmpfs -o size=4k tmpfs "$0" && head -c 4096 /dev/zero > "$0/full"; exec "$@"'


def on_a_full_disk(directory: Path) -> list[str]:
    """What to put before a command, for which alone `directory` then has no room.

    Skips the test where no mount namespace can be made, which other tests do without.
    """
    unshare = ["unshare", "--mount", "--propagation", "slave"]
    unshare += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    if subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("this machine allows no mount namespaces")
    return [*unshare, "sh", "-c", _FULL, str(directory)]
