"""Opinions that this host has, by the content that was judged: the same question is asked once.

A trajectory whose attempt fails after it was judged, or whose worker dies, is not paid for twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from hermes_plugins.judge.opinion import Opinion
from hermes_plugins.judge.transcript import question
from hermes_queue.disk.durable import make_directory, replaced
from hermes_queue.settings import PathSettings
from hermes_queue.wire.judge import JudgeSpec

KEPT_S = 30 * 86400.0
"""Opinions that were not needed for longer are deleted."""
BYTES_MAX = 256 << 10
_NO_CASE = "-"


class KeptOpinion:
    """The opinion on one transcript by one judge. Calls block.

    Args:
        spec: the judge.
        lines: the transcript as it is shown.
        endpoints: those that are asked, whichever of them it is.
    """

    def __init__(self, spec: JudgeSpec, lines: Sequence[str], endpoints: Iterable[str]) -> None:
        asked = [each.model_dump(mode="json") for each in question(spec, lines, _NO_CASE)]
        text = json.dumps([spec.model, spec.sampling, sorted(endpoints), asked], sort_keys=True)
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        self._path: Path = PathSettings().cache / "judgements" / digest[:2] / f"{digest}.json"

    def read(self) -> Opinion | None:
        """The opinion; None if there is none that can be read."""
        try:
            with self._path.open("rb") as file:
                found = Opinion.model_validate_json(file.read(BYTES_MAX + 1))
        except (OSError, ValueError):
            return None
        with suppress(OSError):  # a file system that is read-only
            os.utime(self._path)
        return found

    def write(self, opinion: Opinion) -> None:
        """Keep it. On a full disk nothing is kept."""
        draft = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}")
        with suppress(OSError):
            make_directory(self._path.parent)
            with replaced(self._path, draft):
                draft.write_bytes(opinion.model_dump_json().encode())
            _forget(self._path.parent)


def _forget(folder: Path) -> None:
    """Delete what is old in the folder of a new opinion, one of 256."""
    before = time.time() - KEPT_S
    for entry in os.scandir(folder):
        with suppress(OSError):
            if entry.stat(follow_symlinks=False).st_mtime < before:
                os.unlink(entry.path)
