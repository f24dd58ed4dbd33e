"""Whether the account answers, and whether a profile is described."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.modal.account import Account
from hermes_queue.sandbox.modal.profiles import Profiles
from hermes_queue.sandbox.offers import Condition
from hermes_queue.settings import ModalSettings

ANSWER_S = 20.0


async def check() -> AsyncIterator[Condition]:
    """See `Offer.check`. Makes no sandbox, which would bill."""
    settings = ModalSettings()
    try:
        async with asyncio.timeout(ANSWER_S):
            await Account(settings).open()
    except TimeoutError as error:
        raise SandboxError(f"no answer within {ANSWER_S:.0f} s: see your network") from error
    yield Condition("sandbox.modal", f"the token works, app {settings.app!r} is there")


def check_profile(name: str) -> None:
    """See `Offer.check_profile`."""
    Profiles(ModalSettings())[name]
