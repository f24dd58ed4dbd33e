"""Files of sandboxes: the SDK's file API, snapshots, mounts and volumes."""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import Any

import modal
import pytest


@pytest.fixture
def volume() -> Any:
    return modal.Volume.from_name(f"test-{uuid.uuid4().hex}", create_if_missing=True)


async def test_text_and_bytes_are_written_with_parents_and_read_back(sandbox):
    await sandbox.filesystem.write_text.aio("hello\n", "/workspace/deep/a.txt")
    assert await sandbox.filesystem.read_text.aio("/workspace/deep/a.txt") == "hello\n"
    blob = os.urandom(3_000_000)
    await sandbox.filesystem.write_bytes.aio(blob, "/workspace/blob")
    assert await sandbox.filesystem.read_bytes.aio("/workspace/blob") == blob


async def test_entries_are_listed_and_described(sandbox, sh):
    await sh(sandbox, "mkdir -p /d/sub; printf 1234 >'/d/new\nline'; ln -s /etc /d/link")
    entries = {entry.name: entry for entry in await sandbox.filesystem.list_files.aio("/d")}
    assert set(entries) == {"sub", "new\nline", "link"}
    assert entries["sub"].is_dir()
    assert entries["new\nline"].size == 4
    assert entries["link"].symlink_target == "/etc"
    assert (await sandbox.filesystem.stat.aio("/d/new\nline")).permissions == "0644"


async def test_directories_are_made_and_removed(sandbox, run):
    await sandbox.filesystem.make_directory.aio("/x/y/z")
    with pytest.raises(modal.exception.SandboxFilesystemDirectoryNotEmptyError):
        await sandbox.filesystem.remove.aio("/x")
    await sandbox.filesystem.remove.aio("/x", recursive=True)
    assert (await run(sandbox, "test", "-e", "/x"))[2] == 1


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/nope", modal.exception.SandboxFilesystemNotFoundError),
        ("/etc", modal.exception.SandboxFilesystemIsADirectoryError),
    ],
)
async def test_reading_what_is_no_file_raises(sandbox, path, error):
    with pytest.raises(error):
        await sandbox.filesystem.read_text.aio(path)


async def test_listing_a_file_raises(sandbox):
    with pytest.raises(modal.exception.SandboxFilesystemNotADirectoryError):
        await sandbox.filesystem.list_files.aio("/etc/passwd")


async def test_writing_below_usr_is_refused(sandbox):
    with pytest.raises(modal.exception.SandboxFilesystemPermissionError):
        await sandbox.filesystem.write_text.aio("x", "/usr/bin/x")


async def test_files_are_copied_both_ways(sandbox, tmp_path):
    (tmp_path / "in").write_bytes(b"local")
    await sandbox.filesystem.copy_from_local.aio(tmp_path / "in", "/copied")
    await sandbox.filesystem.copy_to_local.aio("/copied", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"local"


async def test_a_snapshot_starts_other_sandboxes_with_the_same_files(localmodal, create, sh):
    first = await create(env={"ONLY": "first"})
    await sh(
        first, "mkdir -p /stuff; echo hello >/stuff/f; chmod 640 /stuff/f; ln -s f /stuff/link"
    )
    if localmodal.slots is None:
        await sh(first, "chown 20001:20002 /stuff/f")
    listing = "cd /stuff && stat -c '%n %a %u:%g %s' f && readlink link && cat link"
    before = await sh(first, listing)
    image = await first.snapshot_filesystem.aio()
    await sh(first, "echo changed >/stuff/f")
    second = await create(image=image)
    assert await sh(second, listing) == before
    assert await sh(second, "echo ${ONLY:-unset}; ls /usr/bin/env; python3 -c 'print(1)'") == (
        "unset\n/usr/bin/env\n1"
    )


async def test_a_snapshot_is_found_by_id_and_by_its_name(create, sh):
    first = await create()
    await sh(first, "echo hello >/f")
    image = await first.snapshot_filesystem.aio()
    assert await sh(await create(image=modal.Image.from_id(image.object_id)), "cat /f") == "hello"


async def test_planted_links_in_a_snapshot_lead_nowhere(create, run, sh, volume, tmp_path):
    tmp_path.chmod(0o777)
    first = await create()
    await sh(first, f"rm -rf /mnt /srv; ln -s {tmp_path} /mnt; ln -s /proc/1/root{tmp_path} /srv")
    image = await first.snapshot_filesystem.aio()
    await run(await create(image=image, workdir="/srv/made"), "touch", "/mnt/f")
    with contextlib.suppress(modal.exception.Error):
        await create(image=image, volumes={"/mnt/deep/v": volume})
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_snapshot_is_mounted_and_unmounted(create, sh):
    first, second = await create(), await create()
    await sh(first, "mkdir -p /repo/src; echo code >/repo/src/a")
    await sh(second, "mkdir -p /repo; echo own >/repo/b")
    image = await first.snapshot_directory.aio("/repo")
    await second.mount_image.aio("/repo", image)
    assert await sh(second, "ls /repo; cat /repo/src/a") == "src\ncode"
    await second.unmount_image.aio("/repo")
    assert await sh(second, "ls /repo; cat /repo/b") == "b\nown"


async def test_a_snapshot_of_no_directory_is_not_found(sandbox):
    with pytest.raises(modal.exception.NotFoundError):
        await sandbox.snapshot_directory.aio("/nowhere")


async def test_writes_to_a_volume_show_after_commit_and_reload(create, volume, sh):
    writer = await create(volumes={"/cache": volume})
    reader = await create(volumes={"/cache": volume})
    await sh(writer, "mkdir /cache/d; echo one >/cache/d/x")
    assert await sh(reader, "ls /cache") == ""
    await writer.reload_volumes.aio()
    assert await sh(reader, "ls /cache") == ""
    await reader.reload_volumes.aio()
    assert await sh(reader, "cat /cache/d/x") == "one"
    assert await sh(await create(volumes={"/late": volume}), "cat /late/d/x") == "one"


async def test_the_end_of_a_sandbox_commits_its_volumes(create, volume, sh):
    writer = await create(volumes={"/cache": volume})
    await sh(writer, "echo last >/cache/x")
    await writer.terminate.aio()
    assert await sh(await create(volumes={"/cache": volume}), "cat /cache/x") == "last"


async def test_two_writers_of_a_volume_keep_each_others_files_and_deletions(create, volume, sh):
    first = await create(volumes={"/v": volume})
    await sh(first, "echo 1 >/v/kept; echo 1 >/v/gone")
    await first.reload_volumes.aio()
    second = await create(volumes={"/v": volume})
    await sh(first, "echo first >/v/a")
    await sh(second, "rm /v/gone; echo second >/v/b; ln -s a /v/link")
    for box in (first, second, first):
        await box.reload_volumes.aio()
    assert await sh(first, "cd /v; echo *; cat b link") == "a b kept link\nsecond\nfirst"


async def test_a_read_only_volume_cannot_be_written(create, volume, sh, run):
    writer = await create(volumes={"/v": volume})
    await sh(writer, "mkdir /v/sub; echo x >/v/sub/f")
    await writer.reload_volumes.aio()
    options = {"read_only": True, "sub_path": "/sub"}
    reader = await create(volumes={"/v": volume.with_mount_options(**options)})
    assert await sh(reader, "cat /v/f") == "x"
    assert (await run(reader, "touch", "/v/g"))[2] != 0


async def test_links_in_a_volume_do_not_lead_out_of_it(create, volume, sh):
    writer = await create(volumes={"/v": volume})
    await sh(writer, "ln -s /etc /v/sub")
    await writer.reload_volumes.aio()
    with pytest.raises(modal.exception.Error, match="no directory"):
        await create(volumes={"/v": volume.with_mount_options(sub_path="/sub")})


async def test_a_volume_that_does_not_exist_is_not_found(create):
    with pytest.raises(modal.exception.NotFoundError):
        await create(volumes={"/v": modal.Volume.from_name("missing")})
