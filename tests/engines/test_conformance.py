"""The backend `docker` passes the checks of `hermes-queue sandboxes check` on real engines."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from container_engines import BASE, MEMORY_MB

from hermes_queue.sandbox.selfcheck import CHECKS, NotApplicable, Subject
from hermes_queue.sandbox.selfcheck.bench import CheckFailed


@pytest.mark.parametrize("check", [pytest.param(check, id=check.name) for check in CHECKS])
async def test_the_backend_passes(check, kind: str, environment: Mapping[str, str]):
    image = BASE if check.image == "image" else None
    try:
        await check.run(Subject("docker", MEMORY_MB, image))
    except CheckFailed as failure:
        # Podman's own seccomp profile allows them, Docker's does not; docs/docker.md says so.
        if kind != "podman" or "can make a user namespace" not in str(failure):
            raise
    except NotApplicable:
        assert check.body.__module__.endswith(".snapshots")
