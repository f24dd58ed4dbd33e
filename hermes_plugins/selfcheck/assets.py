"""Checks of assets: built once, complete or not at all, mounted read-only."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets

from hermes_plugins.selfcheck.bench import Trial, check, expect, raising, same
from hermes_queue.errors import EnvBug, EnvInfraError, SandboxError
from hermes_queue.sandbox.base import AssetSpec, SlotSpec

MALFORMED = {
    "kind": AssetSpec("../up", "00112233", "", "/opt/assets/x"),
    "key": AssetSpec("venv", "../..", "", "/opt/assets/x"),
    "mount": AssetSpec("venv", "00112233", "", "/opt/assets/../../usr"),
    "mount ": AssetSpec("venv", "00112233", "", "/usr/lib"),
}
"""Malformed field -> asset."""


def _asset(script: str, *, timeout_s: float = 600.0) -> AssetSpec:
    """An asset that no other check, run or backend has built before."""
    key = secrets.token_hex(8)
    return AssetSpec("test", key, script, f"/opt/assets/test-{key}", timeout_s=timeout_s)


@check(slots=1, isolated=True)
async def an_asset_is_built_once_by_five_at_once(bench: Trial) -> None:
    """Build an asset once, even if several tasks and workers of the host request it at the same
    time.
    """
    benches = [bench, await bench.another()]
    spec = _asset("sleep 0.3; date +%s%N >stamp")
    callers = [benches[n % 2].backend.prepare(SlotSpec(assets=(spec,))) for n in range(5)]
    await asyncio.gather(*callers)
    stamps = {await each.backend.read_asset(spec, "stamp") for each in benches}
    same(len(stamps), 1, "builds")


@check(isolated=True)
async def an_asset_is_mounted_read_only_and_only_where_asked_for(bench: Trial) -> None:
    """Show an asset only to slots that ask for it, at its mount and unchangeable, also after
    `renew`.
    """
    spec = _asset("mkdir bin; echo text >bin/file")
    slot = await bench.slot(dataclasses.replace(bench.spec, assets=(spec,)))
    same(await bench.out(slot, f"cat {spec.mount}/bin/file"), "text")
    for change in (f"echo x >{spec.mount}/bin/file", f"rm -rf {spec.mount}/bin"):
        changed = await bench.sh(slot, change)
        expect(not changed.ok, f"a slot can do {change!r}")
    other = await bench.slot()
    same(await bench.out(other, "ls /opt/assets || true"), "", "assets in another slot")
    renewed = await bench.backend.renew(slot)
    same(await bench.out(renewed, f"cat {spec.mount}/bin/file"), "text", "after renew")


@check(isolated=True)
async def a_build_is_strict_and_starts_in_its_mount(bench: Trial) -> None:
    """Run the script under `bash -eu` in its mount, with python3 on PATH."""
    spec = _asset("pwd >where; command -v python3 >>where")
    await bench.backend.prepare(SlotSpec(assets=(spec,)))
    where = (await bench.backend.read_asset(spec, "where")).decode().splitlines()
    same(where[0], spec.mount, "working directory")
    with raising(EnvInfraError, "UNSET_VARIABLE"):
        await bench.backend.prepare(SlotSpec(assets=(_asset("echo $UNSET_VARIABLE"),)))


@check(isolated=True)
async def a_failed_build_says_why_and_leaves_nothing(bench: Trial) -> None:
    """Raise EnvInfraError with exit code and output, keep no part of it, and build it again on the
    next request.
    """
    broken = _asset("echo no such wheel >&2; touch half; exit 7")
    with raising(EnvInfraError, r"exit code 7(.|\n)*no such wheel"):
        await bench.slot(SlotSpec(assets=(broken,)))
    same(bench.backend.free_slots, 2, "free_slots")
    mended = dataclasses.replace(broken, script="echo ok >file; ls -A")
    await bench.backend.prepare(SlotSpec(assets=(mended,)))
    same(await bench.backend.read_asset(mended, "file"), b"ok\n")
    with raising(FileNotFoundError, of="a file of the failed build:"):
        await bench.backend.read_asset(mended, "half")


@check(isolated=True)
async def a_build_that_takes_too_long_is_ended(bench: Trial) -> None:
    """End a build after its `timeout_s`, with an EnvInfraError that says so."""
    with raising(EnvInfraError, r"out of time after 0\.5 s"):
        await bench.backend.prepare(SlotSpec(assets=(_asset("sleep 4242", timeout_s=0.5),)))


@check(isolated=True)
async def reading_an_asset_follows_no_link(bench: Trial) -> None:
    """Read only regular files inside the asset: foreign code made it."""
    spec = _asset(
        "echo text >file; mkdir -p d/e; echo deep >d/e/f; ln -s /etc/passwd link; "
        "ln -s d dirlink; ln -s . self; mkfifo fifo; head -c 1000 /dev/zero >big"
    )
    same(await bench.backend.read_asset(spec, "file"), b"text\n")
    same(await bench.backend.read_asset(spec, "d/e/f"), b"deep\n")
    links = ("link", "dirlink/e/f", "self/file")
    for path in (*links, "fifo", "d", "nope", "../x", "/etc/passwd", ""):
        with raising(FileNotFoundError, of=f"{path!r}:"):
            await bench.backend.read_asset(spec, path)
    with raising(SandboxError, "999 bytes"):
        await bench.backend.read_asset(spec, "big", max_bytes=999)


@check(isolated=True)
async def a_malformed_asset_is_the_envs_fault(bench: Trial) -> None:
    """Raise EnvBug for an invalid kind, key or mount; see `check_asset` of the local backend."""
    for field, spec in MALFORMED.items():
        with raising(EnvBug, f"asset {field.strip()}"):
            await bench.backend.prepare(SlotSpec(assets=(spec,)))


@check(isolated=True)
async def a_python_that_is_not_to_be_had_names_the_fix(bench: Trial) -> None:
    """Raise EnvInfraError with installation advice for a Python version that does not exist."""
    with raising(EnvInfraError, "install"):
        await bench.backend.prepare(SlotSpec(python="3.99"))
