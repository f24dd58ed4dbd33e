"""The backend `docker` passes the checks of `hermes-queue sandboxes check` on real engines."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from container_engines import MEMORY_MB

from hermes_queue.sandbox.selfcheck import CHECKS, NotApplicable, Subject


@pytest.mark.parametrize("check", [pytest.param(check, id=check.name) for check in CHECKS])
async def test_the_backend_passes(check, environment: Mapping[str, str]):
    try:
        await check.run(Subject("docker", MEMORY_MB))
    except NotApplicable:
        assert check.body.__module__.endswith(".snapshots")
