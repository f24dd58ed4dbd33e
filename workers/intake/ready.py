"""What this process has made ready on its host, so that the ledger can prefer jobs that need it."""

from __future__ import annotations

import re
from collections import OrderedDict

REMEMBERED = 64
_NEEDS = re.compile("[0-9a-f]{8}")


class ReadyNeeds:
    """The latest `needs` of jobs that got a slot here, or were prepared for; on one event loop.

    A host may have removed it since: then the job makes it again, like any other.
    """

    def __init__(self) -> None:
        self._latest: OrderedDict[str, None] = OrderedDict()
        self.text = ""
        """For `transitions.begin`."""

    def note(self, needs: str) -> None:
        """What such jobs need is there. Whatever is no name of needs, like "", is passed over."""
        if not _NEEDS.fullmatch(needs):
            return
        if needs in self._latest:
            return self._latest.move_to_end(needs)
        self._latest[needs] = None
        if len(self._latest) > REMEMBERED:
            self._latest.popitem(last=False)
        self.text = f" {' '.join(self._latest)} "
