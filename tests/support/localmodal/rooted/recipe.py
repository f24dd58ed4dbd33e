"""An image as the SDK describes it: Dockerfile lines on top of other images."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hermes_queue.images.spec import OWN_ROOT

_LABEL = re.compile(rf"\s*LABEL\s+{re.escape(OWN_ROOT)}=", re.IGNORECASE)


class HeldImage(Protocol):
    """A built image that stays on the disk as long as somebody holds it."""

    rootfs: Any

    def hold(self) -> HeldImage:
        """Once more."""
        ...

    def release(self) -> None:
        """Once less."""
        ...


@dataclass(frozen=True, slots=True)
class Image:
    """A recipe, recorded or built, or the files of a snapshot."""

    image_id: str
    commands: tuple[str, ...] = ()
    """Dockerfile lines; those of base images come first."""
    files: Path | None = None
    """Tree of a snapshot."""
    own: tuple[str, ...] = ()
    """The last of `commands`, without those of base images."""
    bases: tuple[tuple[str, str], ...] = ()
    """(name in FROM lines, image id)."""
    upload_id: str = ""
    """Of the build context."""
    arguments: tuple[tuple[str, str], ...] = ()
    """Build arguments."""
    rootfs: HeldImage | None = None
    """What a sandbox of it starts from; None: the host's /usr stands for it."""

    @property
    def wants_root(self) -> bool:
        """Whether its maker takes no stand-in: it has our label."""
        return any(_LABEL.match(line) for text in self.commands for line in text.splitlines())

    @property
    def environment(self) -> dict[str, str]:
        """Variables set by its ENV lines."""
        if self.rootfs is not None:
            return dict(self.rootfs.rootfs.config.env)
        found: dict[str, str] = {}
        for words in self._lines("ENV"):
            if len(words) > 1 and "=" not in words[0]:
                found[words[0]] = " ".join(words[1:])
                continue
            for word in words:
                name, _, text = word.partition("=")
                found[name] = text
        return found

    @property
    def workdir(self) -> str:
        """The last WORKDIR line."""
        if self.rootfs is not None:
            return str(self.rootfs.rootfs.config.workdir)
        lines = self._lines("WORKDIR")
        return lines[-1][0] if lines and lines[-1] else ""

    def _lines(self, keyword: str) -> list[list[str]]:
        found = []
        for command in self.commands:
            if match := re.match(rf"\s*{keyword}\s+(.*)", command, re.IGNORECASE | re.DOTALL):
                found.append(shlex.split(match[1]))
        return found
