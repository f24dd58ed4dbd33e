"""Images that the Modal-compatible server builds, through the unmodified SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import modal
import pytest
import pytest_asyncio
from localmodal.server import BackgroundServer
from modal_images import OWN, backend, server
from modal_slots import out

from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import SlotSpec

__all__ = ["backend", "server"]  # fixtures

in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(server: BackgroundServer) -> Any:
    return await modal.App.lookup.aio("tests", create_if_missing=True)


@in_one_loop
async def test_a_folder_is_built_by_what_its_dockerfile_says(backend, tmp_path):
    (tmp_path / "words").write_text("from the context\n")
    (tmp_path / "tool").write_text("#!/bin/bash\necho tool\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "Dockerfile").write_text(
        'ARG BASE=tiny:1\nFROM ${BASE} AS parts\nUSER 0\nCOPY ["words", "/srv/parts/"]\n'
        "FROM ${BASE}\nENV SIZE=7\nWORKDIR /srv/made\n"
        "COPY --from=0 /srv/parts .\nCOPY --chown=1234 <<EOF ./note\na note\nEOF\n"
        "ADD tool /usr/bin/\n"
        'USER root\nRUN <<EOF\ncat words >again\nEOF\nUSER ann\nENTRYPOINT ["tool"]\n'
    )
    slot = await backend.acquire("t", SlotSpec(image=ImageSpec(context=str(tmp_path))))
    shown = await out(backend, slot, "pwd; cat again note; stat -c %u note; tool; id -un 2>&1")
    assert shown.splitlines()[:5] == ["/srv/made", "from the context", "a note", "1234", "tool"]
    assert slot.image_config.entrypoint == ("tool",)
    assert slot.image_config.user == "ann"
    assert slot.image.startswith("built from sha256:")
    await backend.release(slot)


@in_one_loop
async def test_the_server_keeps_mounts_and_uploads_what_images_need(app, tmp_path):
    (tmp_path / "large").write_bytes(b"x" * (5 << 20))
    (tmp_path / "Dockerfile").write_text(
        f"FROM tiny:1\n{OWN}\nUSER root\nWORKDIR /srv/made\nCOPY large ./\n"
    )
    image = modal.Image.from_dockerfile(tmp_path / "Dockerfile", context_dir=tmp_path)
    options: dict[str, Any] = {"app": app, "timeout": 100, "block_network": True}
    sandbox = await modal.Sandbox.create.aio(image=image, **options)
    assert (
        await sh(sandbox, "pwd; stat -c %s large; chown 7:8 /srv/kept") == f"/srv/made\n{5 << 20}"
    )
    missing = await sandbox.exec.aio("no-such-program")
    assert await missing.wait.aio() == 125
    kept = await sandbox.snapshot_filesystem.aio()
    await sh(sandbox, "echo later >/srv/kept")
    await sandbox.mount_image.aio("/opt/seen", kept)
    seen = await sh(sandbox, "cat /opt/seen/srv/kept; stat -c %u /opt/seen/srv/kept; pwd")
    assert seen == "kept\n7\n/srv/made"
    failed = await sandbox.exec.aio("touch", "/opt/seen/srv/kept")
    assert await failed.wait.aio() != 0
    await sandbox.unmount_image.aio("/opt/seen")
    assert await sh(sandbox, "ls /opt/seen") == ""
    await sandbox.terminate.aio()


@in_one_loop
async def test_a_build_that_fails_says_why(app):
    image = modal.Image.from_registry("tiny:1", setup_dockerfile_commands=[OWN, "RUN exit 7"])
    why = r"line 3: 'RUN exit 7' failed with exit code 7"
    with pytest.raises(modal.exception.ImageBuildError, match=why):
        await image.build.aio(app)


async def sh(sandbox: Any, script: str) -> str:
    """What a script that must succeed writes to stdout."""
    process = await sandbox.exec.aio("bash", "-c", script)
    found, errors, code = await asyncio.gather(
        process.stdout.read.aio(), process.stderr.read.aio(), process.wait.aio()
    )
    assert code == 0, (found, errors, code)
    return str(found).strip()
