"""Archives to and from slots: what an agent packed is looked at, member by member."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hermes_queue.sandbox.archives import (
    ArchiveError,
    FilesRefused,
    checked,
    joined,
    packed,
    read_archive,
    write_archive,
)
from hermes_queue.sandbox.base import ExecutionResult


class HostContext:
    """Runs the commands on this host, as whoever the test is."""

    received = 0
    """Bytes of the last command's output."""

    async def run(self, command: str, *, stdin: bytes = b"", **options: Any) -> ExecutionResult:
        child = await asyncio.create_subprocess_exec(
            "bash", "-c", command, stdin=-1, stdout=-1, stderr=-1, cwd=options["cwd"]
        )
        out, err = await child.communicate(stdin)
        self.received = len(out)
        cut = len(out) > options.get("max_output_bytes", 1 << 30)
        return ExecutionResult(child.returncode or 0, out, err, 0.0, truncated=cut)


CONTEXT: Any = HostContext()


def tar(*members: tuple[str, Any]) -> bytes:
    """An archive of (name, content), with bytes for files and fields of TarInfo for the rest."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                for field, value in content.items():
                    setattr(info, field, value)
                archive.addfile(info)
    return buffer.getvalue()


def link(target: str) -> dict[str, Any]:
    return {"type": tarfile.SYMTYPE, "linkname": target}


def hard(target: str) -> dict[str, Any]:
    return {"type": tarfile.LNKTYPE, "linkname": target}


FOLDER = {"type": tarfile.DIRTYPE}


def test_files_links_and_folders_come_back_as_they_were(tmp_path: Path) -> None:
    source = tmp_path / "with space" / "-C"
    source.mkdir(parents=True)
    (source / "new\nline").write_bytes(b"\0\xff")
    (source / "run").write_text("x")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("run")
    (source / "skip.tmp").write_text("x")
    paths = [str(source), str(tmp_path / "absent")]

    async def round_trip() -> None:
        data = await read_archive(CONTEXT, paths, max_bytes=1 << 20, exclude=["*.tmp"])
        await write_archive(CONTEXT, str(tmp_path / "out"), checked(data).data)

    asyncio.run(round_trip())
    copy = tmp_path / "out" / str(source).lstrip("/")
    assert (copy / "new\nline").read_bytes() == b"\0\xff"
    assert (copy / "run").stat().st_mode & 0o777 == 0o755
    assert (copy / "link").is_symlink()
    assert sorted(path.name for path in copy.iterdir()) == ["link", "new\nline", "run"]


def test_an_archive_that_is_too_large_says_so(tmp_path: Path) -> None:
    (tmp_path / "big").touch()
    os.truncate(tmp_path / "big", 1 << 27)  # a hole
    with pytest.raises(OSError, match="more than 50000 bytes") as caught:
        asyncio.run(read_archive(CONTEXT, [str(tmp_path / "big")], max_bytes=50_000))
    assert caught.value.errno == errno.EFBIG
    assert CONTEXT.received == 50_001  # and not the rest


def test_files_in_the_way_are_another_failure_than_the_sandboxs(tmp_path: Path) -> None:
    (tmp_path / "app" / "data").mkdir(parents=True)
    with pytest.raises(FilesRefused):
        asyncio.run(write_archive(CONTEXT, str(tmp_path), tar(("app", link("/elsewhere")))))


def test_what_is_no_file_link_or_folder_is_dropped() -> None:
    data = tar(
        ("app/a", b"1"),
        ("app/pipe", {"type": tarfile.FIFOTYPE}),
        ("app/device", {"type": tarfile.CHRTYPE, "devmajor": 1}),
        ("app/sparse", {"type": tarfile.GNUTYPE_SPARSE, "size": 0}),
        ("app/same", hard("app/a")),
        ("app/shadow", hard("etc/shadow")),
    )
    archive = checked(data)
    assert archive.names == ["/app/a", "/app/same"]
    assert len(archive.dropped) == 4


def test_nothing_is_written_through_a_link_of_the_same_archive() -> None:
    archive = checked(tar(("app/x", link("/usr/bin")), ("app/x/python3", b"forged")))
    assert (archive.names, archive.dropped) == (["/app/x"], ["/app/x/python3"])


def test_nothing_else_takes_the_place_of_a_folder_that_has_files() -> None:
    found = checked(tar(("a/b/c", b"1"), ("a", link("/etc")), ("a/d", b"2")))
    assert (found.names, found.dropped) == (["/a/b/c", "/a/d"], ["/a"])


def test_a_path_is_taken_once() -> None:
    archive = checked(tar(("a", b"1"), ("a", link("/etc")), ("d", FOLDER), ("d", FOLDER)))
    assert archive.names == ["/a", "/d", "/d"]
    assert archive.dropped == ["/a"]


def test_only_expected_paths_are_taken() -> None:
    archive = checked(tar(("app/a", b"1"), ("usr/bin/env", b"2")), {"/app/a"}.__contains__)
    assert archive.names == ["/app/a"]


@pytest.mark.parametrize(
    "data",
    [b"no archive" * 100, tar(("a", bytes(5000)))[:2000], tar(("../a", b"1"))],
    ids=["no archive", "cut short", "leaves the root"],
)
def test_what_is_no_whole_archive_is_refused(data: bytes) -> None:
    with pytest.raises(ArchiveError):
        checked(data)


def test_archives_are_joined_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("2")
    data = joined([checked(tar(("a", b"1"))).data, packed(tmp_path, ["b"])])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == ["a", "b"]


@pytest.mark.parametrize(
    "headers",
    [
        {"type": tarfile.XHDTYPE, "size": 1 << 20},
        {"type": tarfile.XGLTYPE, "size": 1 << 20},
        {"type": b"Z", "size": -1024},
    ],
)
def test_headers_that_would_stop_the_worker_are_refused_at_once(headers: dict[str, Any]) -> None:
    info = tarfile.TarInfo("x")
    for field, value in headers.items():
        setattr(info, field, value)
    data = info.tobuf(tarfile.GNU_FORMAT) + b"1" * (1 << 20) + tar(("y", b""))
    with pytest.raises(ArchiveError, match="extended header"):
        checked(data)


def test_a_name_that_never_ends_is_refused() -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 5
    header = info.tobuf(tarfile.GNU_FORMAT) + b"name\0".ljust(512, b"\0")
    with pytest.raises(ArchiveError, match="too many headers"):
        checked(header * 2000 + tar(("y", b"")))
