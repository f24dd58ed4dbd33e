"""The backend `nomad` passes the checks of `hermes-queue sandboxes check` on real engines."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from container_engines import BASE, MEMORY_MB

from hermes_plugins.selfcheck.bench import CheckFailed, NotApplicable, Subject
from hermes_plugins.selfcheck.checks import CHECKS


@pytest.mark.parametrize("check", [pytest.param(check, id=check.name) for check in CHECKS])
async def test_the_backend_passes(check, kind: str, settings: Mapping[str, str]):
    image = BASE if check.image == "image" else None
    try:
        await check.run(Subject("nomad", MEMORY_MB, image))
    except CheckFailed as failure:
        # Podman's own seccomp profile allows them, Docker's does not: docs/plugins/containers.md.
        if kind != "podman" or "can make a user namespace" not in str(failure):
            raise
    except NotApplicable:
        is_commit = check.name == "a_committed_slot_is_an_image_until_its_lease_ends"
        assert is_commit or check.body.__module__.endswith(".snapshots")
