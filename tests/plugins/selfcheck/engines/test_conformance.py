"""The backend `docker` passes the checks of `hermes-queue sandboxes check` on real engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from container_engines import BASE, MEMORY_MB

from hermes_plugins.selfcheck.bench import Check, CheckFailed, NotApplicable, Subject
from hermes_plugins.selfcheck.checks import CHECKS


def cases() -> Iterator[object]:
    """Each check with slots of the backend's own files, and with slots that have an image."""
    for files, left_out in (("plain", "image"), ("image", "backend")):
        for check in CHECKS:
            if check.image != left_out:
                yield pytest.param(check, files, id=f"{files}-{check.name}")


@pytest.mark.parametrize(("check", "files"), list(cases()))
async def test_the_backend_passes(
    check: Check, files: str, kind: str, environment: Mapping[str, str]
) -> None:
    try:
        await check.run(Subject("docker", MEMORY_MB, BASE if files == "image" else None))
    except CheckFailed as failure:
        # Podman's own seccomp profile allows them, Docker's does not: docs/plugins/containers.md.
        if kind != "podman" or "can make a user namespace" not in str(failure):
            raise
    except NotApplicable:
        assert check.body.__module__.endswith(".snapshots")
