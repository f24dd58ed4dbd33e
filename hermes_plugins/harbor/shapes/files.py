"""Files of a task folder that is made into another: read within bounds, and removed."""

from __future__ import annotations

import shutil
from pathlib import Path

from hermes_queue.errors import EnvBug

MAX_TEXT_BYTES = 4 << 20


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_text(path: Path) -> str:
    """The text of a file without its byte order mark.

    Raises EnvBug: it cannot be read, is not UTF-8, or has more than `MAX_TEXT_BYTES`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise EnvBug(f"{path}: has more than {MAX_TEXT_BYTES} bytes")
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise EnvBug(f"{path}: cannot be read: {error}") from error
