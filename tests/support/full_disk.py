"""A directory whose disk is full, for one command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_FULL = 'mount -t tmpfs -o size=4k tmpfs "$0" && head -c 4096 /dev/zero > "$0/full"; exec "$@"'


def on_a_full_disk(directory: Path) -> list[str]:
    """Words to put before a command, so that `directory` is full for this command alone.

    Skips the test if no mount namespace can be made; other tests need none.
    """
    unshare = ["unshare", "--mount", "--propagation", "slave"]
    unshare += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    if subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("this machine allows no mount namespaces")
    return [*unshare, "sh", "-c", _FULL, str(directory)]
