"""The host directories of one slot with an image, or of one step of a build."""

from __future__ import annotations

from pathlib import Path

from hermes_plugins.images.rootfs.first_process import place_first_process
from hermes_queue.sandbox.host.paths import shared_directory, slot_directory

HOSTS = "127.0.0.1 localhost\n::1 localhost\n"


class SlotPlace:
    """Directories below one root; see `boot_process` for those that it makes there."""

    def __init__(self, root: Path, *, name: str = "slot") -> None:
        """`name`: the host name inside."""
        self.root = root
        self.upper = root / "upper"
        """The slot's own files, over those of its image."""
        self.merged = root / "merged"
        """The tree, in the mount namespace of the slot alone."""
        self.init = root / "init"
        """The program of the first process."""
        self.etc = root / "etc"
        """Files that hide those of the image."""
        self._name = name

    def create(self, *, owner: int, upper: Path | None = None) -> None:
        """Make them for the host uid `owner`, with the files of `upper` if given. Blocking.

        `upper` is moved. Raises OSError.
        """
        slot_directory(self.root, 0o700, owner=owner)
        if upper is None:
            slot_directory(self.upper, owner=owner)
        else:
            upper.rename(self.upper)
        place_first_process(self.init, owner)
        shared_directory(self.etc)
        for name, text in (("hosts", HOSTS), ("hostname", f"{self._name}\n"), ("resolv.conf", "")):
            (self.etc / name).write_text(text)
            (self.etc / name).chmod(0o644)

    def etc_binds(self, *, network: bool) -> list[tuple[str, str, bool]]:
        """Source, target and whether it is a directory of what is mounted over /etc."""
        found = []
        for name in ("hosts", "hostname", "resolv.conf"):
            of_host = network and name != "hostname" and Path("/etc", name).exists()
            source = Path("/etc", name).resolve() if of_host else self.etc / name
            found.append((str(source), f"/etc/{name}", False))
        return found
