"""Slots of the Modal backend whose root file system is an image's, through the unmodified SDK."""

from __future__ import annotations

import shlex

import modal
import pytest
from modal_images import CONFIG, OWN, TINY, backend, server
from modal_slots import answer, out

from hermes_plugins.images.containers import box
from hermes_plugins.images.modal import host as rooted_host
from hermes_plugins.images.modal import listing, slots
from hermes_queue.errors import IsolationUnavailable, SandboxRejected, SlotKilled, SlotLost
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox import files
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.commands import deadline
from hermes_queue.sandbox.image_slots import FileChange

__all__ = ["backend", "server"]  # fixtures

pytestmark = [pytest.mark.rights, pytest.mark.xdist_group("slots with images")]
in_one_loop = pytest.mark.asyncio(loop_scope="module")
ROOT = SlotSpec(image=TINY, user="0")


@in_one_loop
async def test_a_slot_is_what_its_image_says(backend):
    spec = SlotSpec(image=TINY, env=(("SIZE", "7"),), cpus=1, memory_mb=200)
    slot = await backend.acquire("trajectory", spec)
    shown = await out(backend, slot, "id -u; id -G; pwd; echo $COLOUR $SIZE $HOME; cat /etc/motd")
    assert shown.split() == ["1001", "1002", "2000", "/app", "red", "7", "/home/ann", "hello"]
    assert (slot.workspace, slot.image_config) == ("/app", CONFIG)
    assert slot.image.startswith("tiny:1, imported, sha256:")
    assert await out(backend, slot, "id -u; id -g", user="33:44") == "33\n44"
    assert (await answer(backend, slot, "touch /srv/x")).exit_code == 1
    assert "MODAL" not in await out(backend, slot, "export")
    await backend.release(slot)
    with pytest.raises(SandboxRejected, match="no user 'nobody-there'"):
        await backend.acquire("trajectory", SlotSpec(image=TINY, user="nobody-there"))
    assert backend.free_slots == 2


@in_one_loop
@pytest.mark.fleet
async def test_changes_are_found_by_content_and_outlive_a_restart_and_a_commit(backend, server):
    slot = await backend.acquire("trajectory", ROOT)
    await out(
        backend,
        slot,
        "rm /etc/group; mkdir /srv/new; echo x >/srv/new/f; echo KEPT >/srv/now; "
        "touch -r /srv/kept /srv/now; mv /srv/now /srv/kept; chown 7 /opt; touch /etc/motd",
    )
    changes = [
        FileChange("/etc/group", "deleted"),
        FileChange("/opt", "changed"),
        FileChange("/srv/kept", "changed"),
        FileChange("/srv/new", "added"),
        FileChange("/srv/new/f", "added"),
    ]
    assert await backend.changes(slot) == changes
    again = await backend.restart(slot)
    assert isinstance(await answer(backend, slot, "true"), SlotLost)
    assert await out(backend, again, "cat /srv/kept; stat -c %u /opt") == "KEPT\n7"
    image = await backend.commit(again)
    await out(backend, again, "rm /etc/passwd /srv/new/f; ln -s /dev/zero /etc/passwd")
    assert await out(backend, again, "id -u", user="5") == "5"
    fresh = await backend.renew(again, SlotSpec(image=image, user="0"))
    assert await out(backend, fresh, "cat /srv/new/f") == "x"
    await backend.release(fresh)
    with pytest.raises(SandboxRejected, match="ended with the lease"):
        await backend.acquire("trajectory", SlotSpec(image=image))
    snapshots = [each for each in server.server.store.images.values() if not each.commands]
    assert snapshots == []


@in_one_loop
@pytest.mark.parametrize(("module", "limit"), [(slots, "KEEP_TIMEOUT_S"), (listing, "TIMEOUT_S")])
async def test_files_that_are_not_compared_in_time_may_be_the_agents_doing(
    backend, monkeypatch, module, limit
):
    slot = await backend.acquire("trajectory", ROOT)
    monkeypatch.setattr(module, limit, 0)
    with pytest.raises(FilesRefused, match="in 0 s"):
        await backend.changes(slot)
    assert await out(backend, slot, "echo alive") == "alive"
    await backend.release(slot)


@in_one_loop
async def test_a_slot_whose_files_are_not_kept_in_time_goes_on_without_a_restart(
    backend, monkeypatch
):
    slot = await backend.acquire("trajectory", ROOT)
    with monkeypatch.context() as patch:
        patch.setattr(slots, "KEEP_TIMEOUT_S", 0)
        with pytest.raises(FilesRefused, match="were not kept"):
            await backend.restart(slot)
    assert await out(backend, slot, "echo alive") == "alive"
    fresh = await backend.renew(slot)
    assert await out(backend, fresh, "echo alive") == "alive"
    await backend.release(fresh)
    assert backend.free_slots == 2


def replaced(program: str, text: str) -> str:
    """The command with which root replaces a program by a script of its shell."""
    own = "mv /usr/bin/bash /usr/bin/own; " if program == "bash" else ""
    shell = "own -p" if own else "bash"
    script = shlex.quote(f"#!/usr/bin/{shell}\n{text}\n")
    return f"{own}rm -f /usr/bin/{program}; printf %s {script} >/new; chmod +x /new; " + (
        f"mv /new /usr/bin/{program}"
    )


@in_one_loop
async def test_a_shell_that_reports_nonsense_is_the_end_of_its_command_and_no_failure(backend):
    slot = await backend.acquire("trajectory", ROOT)
    lie = r"""printf '\0%s\0' "$8" >&2; printf '\0%s\0nonsense\0' "$8" """  # the seal
    await out(backend, slot, replaced("bash", lie))
    found = await answer(backend, slot, "true")
    assert (found.exit_code, found.timed_out) == (137, False)
    await backend.release(slot)


@in_one_loop
@pytest.mark.parametrize("lie", ["", "exit 0"])
async def test_a_slot_whose_shell_keeps_a_command_from_ending_was_ended_by_its_agent(
    backend, lie, monkeypatch
):
    monkeypatch.setattr(box, "KILL_S", 1.0)
    monkeypatch.setattr(rooted_host, "EMPTY_S", 1.0)
    monkeypatch.setattr(deadline, "KILL_PAUSE_S", 0.01)
    slot = await backend.acquire("trajectory", ROOT)
    # Of our own programs it lets the one live that runs commands.
    text = f'case "$*" in *kill_marked*) {lie or ":"};; *"kill -9 -1"*) exit 0;; esac\n'
    await out(backend, slot, replaced("bash", text + "while :; do sleep 1000; done"))
    assert isinstance(await answer(backend, slot, "true", timeout_s=1), SlotKilled)
    assert isinstance(await answer(backend, slot, "true", timeout_s=1), SlotKilled)
    await backend.release(slot)
    fresh = await backend.acquire("trajectory", ROOT)
    assert await out(backend, fresh, "echo alive") == "alive"
    await backend.release(fresh)


@in_one_loop
async def test_a_file_that_the_slots_own_program_does_not_hand_out_is_no_failure(
    backend, monkeypatch
):
    monkeypatch.setattr(files, "TIMEOUT_S", 1.0)
    slot = await backend.acquire("trajectory", ROOT)
    await out(backend, slot, replaced("head", "sleep 1000"))
    with pytest.raises(TimeoutError, match="no answer within 1 s"):
        await backend.read_file(slot, "/etc/motd")
    await backend.release(slot)


@in_one_loop
async def test_what_cannot_be_uploaded_to_modal_is_refused(backend, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to("words")
    (tmp_path / "data" / "words").write_text("words\n")
    (tmp_path / "Dockerfile").write_text("FROM tiny:1\nCOPY data /srv/data\n")
    spec = SlotSpec(image=ImageSpec(context=str(tmp_path)))
    with pytest.raises(SandboxRejected, match="line 2: COPY: the link data/link cannot be"):
        await backend.prepare(spec)
    (tmp_path / "data" / "link").unlink()
    (tmp_path / "data" / "empty").mkdir()
    with pytest.raises(SandboxRejected, match="the empty folder data/empty cannot be"):
        await backend.prepare(spec)


@in_one_loop
async def test_a_task_gets_no_more_than_the_worker_allows(backend):
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_IMAGES_NETWORK=open"):
        await backend.prepare(SlotSpec(image=TINY, network="open"))
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_IMAGES_MAX_CPUS=64"):
        await backend.prepare(SlotSpec(image=TINY, cpus=64))


@in_one_loop
async def test_without_a_range_of_ids_images_are_refused_with_the_fix(backend, server, monkeypatch):
    async def no_range() -> None:
        raise IsolationUnavailable("install uidmap")

    builds = server.server.store.builds
    monkeypatch.setattr(builds, "_checked", False)
    monkeypatch.setattr(builds.host, "check", no_range)
    image = modal.Image.from_registry("tiny:1", setup_dockerfile_commands=[OWN, "ENV A=1"])
    with pytest.raises(SandboxRejected, match="no images on this host: install uidmap"):
        await backend._account.build(image, "a test", 60)
