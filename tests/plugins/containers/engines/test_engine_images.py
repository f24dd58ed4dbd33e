"""Images at real engines: built once per content, substituted, refused with what to change."""

from __future__ import annotations

import asyncio
import re

import pytest
from container_engines import BASE

from hermes_plugins.images.context import BuildContext
from hermes_queue.errors import EnvBug, EnvInfraError, SandboxRejected
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import SlotSpec

DOCKERFILE = f"""\
ARG BASE={BASE}
FROM $BASE AS made
ARG GREETING="hello world"
RUN <<EOF
set -e
echo "$GREETING" >/greeting
useradd --create-home agent
EOF

FROM $BASE
COPY --from=made /greeting /app/greeting
COPY --chmod=755 tool /usr/local/bin/tool
COPY <<EOF /app/note
from a heredoc
EOF
ENV LIST="a b" \\
    OTHER=x
WORKDIR /app/work
USER nobody
CMD ["tool"]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool\n")
    return tmp_path


async def test_a_folder_is_built_once_with_what_old_builders_do_not_know(make_backend, folder):
    benches = [await make_backend(), await make_backend()]
    spec = SlotSpec(image=ImageSpec(context=str(folder)))
    await asyncio.gather(*(bench.backend.prepare(spec) for bench in benches))
    slot = await benches[0].slot(spec)
    command = "cat /app/greeting /app/note; tool; echo $LIST $OTHER; pwd; id -un"
    assert (await benches[0].out(slot, command)).splitlines() == [
        *("hello world", "from a heredoc", "tool", "a b x", "/app/work", "nobody")
    ]
    assert slot.image_config.command == ("tool",)
    assert re.match(r"built from sha256:[0-9a-f]{64}; FROM .+, sha256:[0-9a-f]{64}", slot.image)


async def test_a_build_that_fails_says_why(bench, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN echo no such wheel >&2; exit 7\n")
    with pytest.raises(EnvInfraError, match=r"(?s)no such wheel") as caught:
        await bench.backend.prepare(SlotSpec(image=ImageSpec(context=str(tmp_path))))
    assert "7" in str(caught.value)


async def test_a_folder_with_another_digest_is_refused(bench, folder):
    digest = BuildContext(folder).digest
    (folder / "tool").write_text("changed")
    with pytest.raises(EnvBug, match="names"):
        await bench.backend.prepare(SlotSpec(image=ImageSpec(context=str(folder), digest=digest)))


async def test_an_image_that_is_substituted_says_so(make_backend):
    bench = await make_backend(images={"base_images": {"ubuntu:24.04": BASE}})
    slot = await bench.slot(SlotSpec(image=ImageSpec("ubuntu:24.04")))
    assert re.fullmatch(rf"ubuntu:24.04, replaced by {BASE}, sha256:[0-9a-f]{{64}}", slot.image)


async def test_from_lines_are_substituted_and_need_permission(make_backend, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM ubuntu:24.04\nRUN echo built >/made\n")
    spec = SlotSpec(image=ImageSpec(context=str(tmp_path)))
    refusing = await make_backend(images={"allowed": ["debian:*"]})
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_IMAGES_ALLOWED"):
        await refusing.backend.prepare(spec)
    bench = await make_backend(images={"base_images": {"ubuntu:24.04": BASE}})
    slot = await bench.slot(spec)
    assert await bench.out(slot, "cat /made") == "built"
    assert "replaced by" in slot.image


async def test_an_image_that_cannot_be_had_names_the_settings_and_the_line(make_backend, tmp_path):
    bench = await make_backend(images={"mirror": "localhost:1"})
    with pytest.raises((SandboxRejected, EnvInfraError), match="HERMES_QUEUE_IMAGES_MIRROR"):
        await bench.slot(SlotSpec(image=ImageSpec("nobody/has-this:1")))
    (tmp_path / "Dockerfile").write_text("ARG X=1\nFROM nobody/has-this:1\n")
    with pytest.raises((SandboxRejected, EnvInfraError), match=r"^Dockerfile line 2: the image "):
        await bench.slot(SlotSpec(image=ImageSpec(context=str(tmp_path))))
    assert bench.backend.free_slots == 2


async def test_an_image_without_bash_is_refused(make_backend, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN rm /bin/bash\n")
    bench = await make_backend()
    with pytest.raises(SandboxRejected, match="install bash"):
        await bench.slot(SlotSpec(image=ImageSpec(context=str(tmp_path))))
    assert bench.backend.free_slots == 2
