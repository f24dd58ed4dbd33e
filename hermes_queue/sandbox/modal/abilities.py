"""Capabilities of an image and of the service's kernel, as `slot.sh probe` finds them."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_queue.errors import SandboxRejected
from hermes_queue.settings import ModalSettings

TOOLS_NEEDED = frozenset({"timeout", "env", "find", "grep", "env-C"})


@dataclass(frozen=True, slots=True)
class Abilities:
    """Facts about one sandbox."""

    uids: bool = False
    """Whether each lease can have a separate uid, whose processes can be found and killed."""
    mounts: bool = False
    """Whether each slot can have separate directories under common names."""
    python: str = ""
    """Version of the image's python3, e.g. "3.11"; "" = none."""
    propagation: str = "private"
    """Propagation option with which `unshare` makes a mount namespace here."""
    environ: bool = True
    """Whether root can read the environment of other uids' processes."""
    leaks: bool = False
    """Whether every uid can, even that of other slots."""
    hidden: bool = False
    """Whether slots with separate mounts do not see other slots' processes."""
    setpriv: bool = False
    """Whether the image has setpriv."""

    @classmethod
    def parsed(cls, facts: str, image: str) -> Abilities:
        """From `name=value` words. Raises SandboxRejected: the image lacks what slots need."""
        pairs = [word.partition("=")[::2] for word in facts.split()]
        lacks = {value for name, value in pairs if name == "lacks"}
        known = dict(pairs)
        if lacks & TOOLS_NEEDED or "uids" not in known:
            why = f"lacks {', '.join(sorted(lacks))}" if lacks else f"answers {facts!r}"
            raise SandboxRejected(cannot_hold_slots(image, why))
        yes = {
            name: known[name] == "1" for name in ("uids", "mounts", "environ", "leaks", "hidden")
        }
        return cls(
            python=known["python"],
            propagation=known["propagation"],
            setpriv="setpriv" not in lacks,
            **yes,
        )

    @property
    def keeps_apart(self) -> bool:
        """Whether several slots cannot access each other."""
        return self.uids and not self.leaks

    def shortcoming(self, profile: ModalSettings) -> str:
        """The lack of isolation between slots that the profile does not show; "" = none."""
        if profile.slots_per_sandbox == 1:
            return ""
        if not self.uids:
            why = "does not let root act for other uids" if self.setpriv else "has no setpriv"
            return f"{why}: {'several slots share root' if profile.share_root else 'one slot each'}"
        if self.leaks:
            why = "shows every uid the environment of all processes"
            return f"{why}: {'slots see each other' if profile.share_root else 'one slot each'}"
        if self.mounts and not self.hidden:
            return "cannot hide processes: slots see the command lines of other slots' processes"
        return ""


def cannot_hold_slots(image: str, why: str) -> str:
    """The message for an image that is refused."""
    return (
        f"image {image} cannot hold slots ({why}): it needs bash, grep, findutils and coreutils "
        "8.28 or newer"
    )
