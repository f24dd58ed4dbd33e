"""The disk of the spool is full."""

from __future__ import annotations

import os
import subprocess

import pytest

FULL = 'mount -t tmpfs -o size=4k tmpfs "$0" && head -c 4096 /dev/zero > "$0/full"; exec "$@"'


def test_a_record_that_the_disk_has_no_room_for_is_published_from_memory(
    factory, start_worker, tmp_path
):
    spool = tmp_path / "spool"
    spool.mkdir()
    unshare = ["unshare", "--mount", "--propagation", "slave"]
    unshare += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    if subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("this machine allows no mount namespaces")
    prefix = (*unshare, "sh", "-c", FULL, str(spool))
    worker = start_worker(concurrency=1, prefix=prefix, HERMES_QUEUE_PATHS_SPOOL=str(spool))
    factory.enqueue(1, seconds=0)
    [record] = factory.wait_done()
    assert record.score is not None
    assert "No space left on device" in worker.log()
    assert "is published from memory" in worker.log()
