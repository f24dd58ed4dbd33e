"""Assets on Modal: built in a separate networked sandbox, kept as directory snapshots.

A snapshot is an image of one directory; sandboxes that mount it share it without copying. The
snapshot of each asset is noted on this host, below the cache directory, one file per asset under
a lock, and shared with the fleet. A host without a note, its own or the fleet's, builds the
asset.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import logging
import shlex
import tarfile
import time
import uuid
from pathlib import Path
from typing import Any

from hermes_queue.disk.turn import build_turn
from hermes_queue.errors import EnvInfraError, SandboxError, SandboxRejected
from hermes_queue.sandbox.base import DROPPED_VARIABLES, AssetSpec, ExecutionResult
from hermes_queue.sandbox.fleet import SnapshotNotes
from hermes_queue.sandbox.host import pip as pip_settings
from hermes_queue.sandbox.local.assets import check_asset, check_built, parts_inside
from hermes_queue.sandbox.modal.account import ModalAccount
from hermes_queue.sandbox.modal.box import ROOT, ModalSandbox
from hermes_queue.sandbox.modal.factory import BoxFactory
from hermes_queue.sandbox.modal.failures import explained
from hermes_queue.sandbox.modal.process import run_process
from hermes_queue.sandbox.modal.profiles import image_key
from hermes_queue.settings import ModalSettings, private_directory

logger = logging.getLogger(__name__)

TTL_S = 30 * 86_400
"""Lifetime of a snapshot at Modal."""
TRUSTED_S = TTL_S - 86_400
SNAPSHOT_TIMEOUT_S = 300
PIP = f"{ROOT}/pip"
INDEXES = frozenset({"PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"})
READ_TIMEOUT_S = 60.0
ABSENT = 66
READ = (
    f'[ "$(realpath -- "$1")" = "$1" ] && [ -f "$1" ] || exit {ABSENT}; exec head -c "$2" -- "$1"'
)


class ModalAssets:
    """The assets of one Modal app, as known on this host."""

    def __init__(
        self, cache: Path, account: ModalAccount, factory: BoxFactory, fleet: SnapshotNotes
    ) -> None:
        self._cache = cache
        self._account = account
        self._factory = factory
        self._fleet = fleet
        self._app_id = ""
        self._notes: Path | None = None
        self._images: dict[Path, Any] = {}

    def open(self, app_id: str) -> None:
        """Use the notes of this app."""
        self._app_id = app_id
        self._notes = private_directory(self._cache / "modal" / app_id)

    async def ensure(self, profile: ModalSettings, spec: AssetSpec) -> Any:
        """The image that holds the asset, built now unless it exists.

        Raises:
            EnvInfraError: its script failed or ran out of time, or the image has another Python.
            SandboxError: the sandbox for the build could not run.
            EnvBug: the spec is malformed.
        """
        check_asset(spec)
        note = self._note(profile, spec)
        if note not in self._images:
            async with build_turn(note.with_suffix(".lock")):
                image = await self._noted(note)
                if image is None:
                    image = await self._account.snapshot(await self._build(profile, spec, note))
                self._images[note] = image
        return self._images[note]

    async def _noted(self, note: Path) -> Any:
        """The image in this host's note, else in the fleet's, if Modal still has it."""
        own, left_s = _read_note(note)
        if own and (image := await self._found(note, own)):
            # The fleet may lack the note: Redis was away, or another deployment made it.
            await self._fleet.save(self._app_id, note.stem, own, ttl_s=left_s)
            return image
        shared = await self._fleet.load(self._app_id, note.stem)
        return await self._found(note, shared) if shared else None

    async def _found(self, note: Path, image_id: str) -> Any:
        """The image, or None if Modal no longer has it; then the fleet's note is dropped."""
        try:
            return await self._account.snapshot(image_id)
        except SandboxRejected as error:
            logger.info("building %s again: %s", note.stem, error, extra={"action": "asset_gone"})
            await self._fleet.forget(self._app_id, note.stem, image_id)
            return None

    def _note(self, profile: ModalSettings, spec: AssetSpec) -> Path:
        if self._notes is None:
            raise SandboxError("the modal backend is not running")
        # Files compiled or linked in one image may not work in another.
        return self._notes / f"{spec.kind}-{spec.key}-{image_key(profile)}.json"

    async def _build(self, profile: ModalSettings, spec: AssetSpec, note: Path) -> str:
        began = time.monotonic()
        builder = profile.model_copy(
            update={"lifetime_s": int(spec.timeout_s + profile.start_timeout_s) + 600}
        )
        box = await self._factory.make(builder, open_network=True)
        try:
            check_python(profile, box, spec.python)
            check_built(spec, await self._run(box, spec))
            with explained(f"keeping {spec.kind} {spec.key[:12]}", gone=True):
                image = await box.sandbox.snapshot_directory.aio(
                    spec.mount, timeout=SNAPSHOT_TIMEOUT_S, ttl=TTL_S
                )
        finally:
            await self._factory.end(box)
        unfinished = note.with_suffix(".new")
        unfinished.write_text(json.dumps({"image_id": image.object_id, "made": time.time()}))
        unfinished.rename(note)
        await self._fleet.save(self._app_id, note.stem, image.object_id, ttl_s=TRUSTED_S)
        took_s, extra = time.monotonic() - began, {"action": "asset_built"}
        logger.info("built %s %s in %.1f s", spec.kind, spec.key[:12], took_s, extra=extra)
        return str(image.object_id)

    async def _run(self, box: ModalSandbox, spec: AssetSpec) -> ExecutionResult:
        """Run the spec's script in a separate directory, as root."""
        settings = await asyncio.to_thread(pip_exports, self._cache)
        # Packing pip takes half a second of the worker's processor.
        pip = await self._pip(box) if "HQ_PIP" in spec.script else ""
        command_id = uuid.uuid4().hex
        # Slots mount it read-only if the kernel can; in any case they may not write to it.
        command = (
            f"umask 022; mkdir -p {spec.mount} && cd {spec.mount} || exit; "
            f'export HOME=/root HQ_COMMAND_ID={command_id} HQ_PIP="{pip}"; {settings}; '
            f"for name in $(compgen -e); do [[ $name != @({'|'.join(DROPPED_VARIABLES)}) ]] "
            "|| unset $name; done; "
            f'/bin/bash -eu "$0" </dev/null || exit; chmod -R go-w {spec.mount}'
        )
        script = f"{ROOT}/build.sh"
        await run_process(
            box.sandbox,
            ["/bin/bash", "-c", f"cat >{script}"],
            stdin=spec.script.encode(),
            timeout_s=READ_TIMEOUT_S,
        )

        async def end() -> None:
            await box.script("kill", command_id)

        return await run_process(
            box.sandbox, ["/bin/bash", "-c", command, script], timeout_s=spec.timeout_s, kill=end
        )

    async def _pip(self, box: ModalSandbox) -> str:
        """The command for pip in a build: the image's own, else the worker's copy."""
        check = ["/bin/bash", "-c", "python3 -c 'import pip' || exit 1"]
        done = await run_process(box.sandbox, check, timeout_s=READ_TIMEOUT_S)
        if done.exit_code == 0:
            return "python3 -m pip"
        package = await asyncio.to_thread(_packed_pip, self._cache)
        unpack = f"mkdir {PIP} && tar -xz -C {PIP}"
        done = await run_process(
            box.sandbox, ["/bin/bash", "-c", unpack], stdin=package, timeout_s=READ_TIMEOUT_S
        )
        if done.exit_code != 0:
            raise SandboxError(f"cannot upload pip: {done.stderr.decode(errors='replace')}")
        return f"env PYTHONPATH={PIP} python3 -m pip"

    async def read(
        self,
        box: ModalSandbox,
        profile: ModalSettings,
        spec: AssetSpec,
        path: str,
        *,
        max_bytes: int,
    ) -> bytes:
        """See `SandboxBackend.read_asset`; `box` is one without slots."""
        place = mount_place(spec)
        target = "/".join((place, *parts_inside(path)))
        image = await self.ensure(profile, spec)
        await self.mount(box, place, image, profile, spec)
        done = await run_process(
            box.sandbox,
            ["/bin/bash", "-c", READ, "read", target, str(max_bytes + 1)],
            timeout_s=READ_TIMEOUT_S,
            max_output_bytes=max_bytes + 2,
            whole=True,
        )
        if done.exit_code == ABSENT:
            raise FileNotFoundError(errno.ENOENT, "not a regular file inside the asset", path)
        if done.exit_code != 0:
            raise SandboxError(f"asset file {path!r} cannot be read: exit code {done.exit_code}")
        if len(done.stdout) > max_bytes:
            raise SandboxError(f"asset file {path!r} is larger than {max_bytes} bytes")
        return done.stdout

    async def mount(
        self, box: ModalSandbox, place: str, image: Any, profile: ModalSettings, spec: AssetSpec
    ) -> None:
        """Mount the asset at `place` in a sandbox. Raises SandboxError: Modal no longer has it."""
        try:
            await box.mount(place, image)
        except SandboxRejected as error:
            note = self._note(profile, spec)
            if self._images.pop(note, None) is not None:
                await self._fleet.forget(self._app_id, note.stem, image.object_id)
            note.unlink(missing_ok=True)
            raise SandboxError(f"{error}; the next attempt builds it again") from error


def mount_place(spec: AssetSpec) -> str:
    """Path of the asset for root of a sandbox, which slots do not see."""
    return f"{ROOT}/assets/{spec.kind}-{spec.key}"


def check_python(profile: ModalSettings, box: ModalSandbox, required: str | None) -> None:
    """Refuse an image with another Python than the job needs. Raises EnvInfraError."""
    found = box.abilities.python
    if required is not None and found != required:
        has = f"Python {found}" if found else "no python3"
        raise EnvInfraError(
            f"the job needs Python {required}, image {profile.dockerfile or profile.image} has "
            f"{has}: name a profile with another image, or install it with build_commands"
        )


def _packed_pip(cache: Path) -> bytes:
    """The worker's pip as a compressed archive, without its compiled files. Blocking."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=3) as archive:
        archive.add(
            pip_settings.prepare(cache).package,
            arcname=".",
            filter=lambda info: None if info.name.endswith(("__pycache__", ".pyc")) else info,
        )
    return packed.getvalue()


def pip_exports(cache: Path) -> str:
    """Shell commands that set the worker's index settings. Blocking.

    The path of a worker's file is used if the sandbox has a file of the same name, such as the
    system's certificates. Indexes on the worker's disk are left out.
    """
    lines = []
    for name, value in pip_settings.prepare(cache).environment:
        words = [word for word in value.split() if not word.startswith(("/", "file:", "~"))]
        if words:
            lines.append(f"export {name}={shlex.quote(' '.join(words))}")
        elif value.startswith("/") and name not in INDEXES:
            lines.append(f"[ ! -e {shlex.quote(value)} ] || export {name}={shlex.quote(value)}")
    return "; ".join([*lines, "true"])


def _read_note(note: Path) -> tuple[str | None, float]:
    """The snapshot's id, if there is one, and the seconds for which Modal still keeps it."""
    try:
        facts = json.loads(note.read_text())
    except (OSError, ValueError):
        return None, 0.0
    left_s = facts["made"] + TRUSTED_S - time.time()
    return (str(facts["image_id"]), left_s) if left_s > 0 else (None, 0.0)
