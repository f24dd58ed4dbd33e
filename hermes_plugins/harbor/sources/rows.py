"""Rows that hold a whole task: as `task_binary`, or in the columns of terminal-bench 2."""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import json
import posixpath
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_plugins.harbor import tree
from hermes_queue.errors import EnvBug, InputError
from hermes_queue.sandbox.archives import packed

MAX_UNPACKED_BYTES = 512 << 20
ROW_SHAPES = (
    "`instance_id` and `task`, or `path` and `task_binary`, or `task_name`, `instruction`, "
    "`docker_image`, `environment_tar`, `tests_tar` and `test_sh`"
)


def as_item(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row in the form of `HarborItem`.

    Raises:
        InputError: its columns are damaged.
    """
    if "task_binary" in row:
        return _binary(row)
    if "docker_image" in row and "instruction" in row:
        return _columns(row)
    if "task" not in row:
        raise InputError(
            f"has no task in it: rows have {ROW_SHAPES}; this one has {', '.join(list(row)[:12])}"
        )
    return dict(row)


def archive_of(folder: Path) -> str:
    """A folder as `ArchivedTask.archive`; equal for equal folders. Raises EnvBug."""
    names = [entry.name for entry in tree.entries(folder)]
    return _encoded(packed(folder, names))


def _binary(row: Mapping[str, Any]) -> dict[str, Any]:
    data = row["task_binary"]
    if isinstance(data, str):
        data = _decoded(data, "task_binary")
    if not isinstance(data, bytes | bytearray):
        raise InputError("task_binary: must be the bytes of a tar.gz")
    path = str(row.get("path") or row.get("instance_id") or "").strip("/")
    name = str(row.get("instance_id") or posixpath.basename(path).removesuffix(".tar.gz"))
    if not name:
        raise InputError("path: is missing; the task is named after it")
    return {"instance_id": name, "task": {"archive": base64.b64encode(data).decode()}}


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """`task_name, instruction, docker_image, environment_tar, tests_tar, test_sh`."""
    name = row.get("task_name") or row.get("instance_id")
    if not name or not row["instruction"] or not row["docker_image"]:
        raise InputError("task_name, instruction and docker_image must not be empty")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "instruction.md").write_text(str(row["instruction"]))
        (folder / "task.toml").write_text(_config(row))
        for column, place in (("environment_tar", "environment"), ("tests_tar", "tests")):
            (folder / place).mkdir()
            if row.get(column):
                _untar(_decoded(row[column], column), folder / place, column, place)
        if row.get("test_sh"):
            (folder / "tests" / "test.sh").write_text(str(row["test_sh"]))
        try:
            archive = archive_of(folder)
        except EnvBug as error:
            raise InputError(f"{name}: {error}") from error
    return {"instance_id": str(name), "task": {"archive": archive}}


def _config(row: Mapping[str, Any]) -> str:
    """A task.toml; JSON's strings and numbers are TOML's, too."""
    lines = ["[environment]", f"docker_image = {_quoted(row['docker_image'])}"]
    for table, column in (("agent", "agent_timeout"), ("verifier", "verifier_timeout")):
        seconds = row.get(f"{column}_sec") or row.get(column)
        if isinstance(seconds, int | float):
            lines += [f"[{table}]", f"timeout_sec = {float(seconds)}"]
    if row.get("category"):
        lines += ["[metadata]", f"category = {_quoted(row['category'])}"]
    return "\n".join(lines) + "\n"


def _quoted(value: Any) -> str:
    # Not escaped as JSON does it: TOML knows no pairs of surrogates.
    return json.dumps(str(value), ensure_ascii=False)


def _untar(data: bytes, target: Path, column: str, place: str) -> None:
    """Unpack a column; a single folder of the place's own name is the place itself."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as tar:
            members = tar.getmembers()
            if sum(member.size for member in members) > MAX_UNPACKED_BYTES:
                raise InputError(f"{column}: has more than {MAX_UNPACKED_BYTES} bytes unpacked")
            names = [member.name.removeprefix("./") for member in members]
            inside = all(name in ("", ".", place) or name.startswith(f"{place}/") for name in names)
            tar.extractall(target.parent if inside else target, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InputError(f"{column}: is no whole tar archive: {error}") from error


def _decoded(text: Any, column: str) -> bytes:
    if isinstance(text, bytes | bytearray):
        return bytes(text)
    try:
        return base64.b64decode(str(text), validate=True)
    except (ValueError, binascii.Error) as error:
        raise InputError(f"{column}: is not base64: {error}") from error


def _encoded(tar: bytes) -> str:
    return base64.b64encode(gzip.compress(tar, mtime=0)).decode()
