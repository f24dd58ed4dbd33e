"""What a row is about must not be readable in the environment of the program that works on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable

from hermes_queue.agent.programs.install import TOP_LEVEL
from hermes_queue.agent.programs.program import Program
from hermes_queue.errors import EnvBug
from hermes_queue.sandbox.base import AssetSpec, SlotSpec

_known: dict[str, frozenset[str]] = {}
_KNOWN_MAX = 64
_MAX_BYTES = 1 << 20


def overlap(conceal: Iterable[str], imports: Collection[str]) -> str | None:
    """The first name of `SlotSpec.conceal` that an environment with these imports brings."""
    return next((name for name in conceal if name.partition(".")[0] in imports), None)


async def check_conceal(
    program: Program,
    spec: SlotSpec,
    read_asset: Callable[[AssetSpec, str], Awaitable[bytes]],
) -> None:
    """Refuse a program whose environment holds the subject of the row; it has been installed.

    Raises:
        EnvBug: names the package; the job fails for good, the run goes on.
        SandboxError: the asset cannot be read.
    """
    asset = program.asset
    if asset is None or not spec.conceal:
        return
    if asset.key not in _known:
        while len(_known) >= _KNOWN_MAX:
            _known.pop(next(iter(_known)))
        data = await read_asset(asset, TOP_LEVEL)
        if len(data) > _MAX_BYTES:
            raise EnvBug(f"the program {program.name} brings more import names than can be checked")
        _known[asset.key] = frozenset(data.decode(errors="replace").split())
    if name := overlap(spec.conceal, _known[asset.key]):
        raise EnvBug(
            f"the program {program.name} brings the package {name!r}, which this row is about: its "
            "source would be the answer; run such rows with another program"
        )
