"""Positions in an ordered list, as opaque texts for `after=`."""

from __future__ import annotations

import base64
import json
from typing import Any

from hermes_queue.errors import HermesQueueError

_CHARACTERS = 8192
"""Two texts of a column as JSON in base64 are shorter."""
_LARGEST = 1 << 62


class PageError(HermesQueueError):
    """A sort, cursor or figure that this index does not know.

    Attributes:
        hint: what to write instead.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def encode_cursor(order: str, value: Any, last: int | str) -> str:
    """The position behind the row with `value` in the column of `order`, and the key `last`."""
    data = json.dumps([order, value, last], separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode(data.encode()).decode().rstrip("=")


def decode_cursor(text: str, order: str, kind: type) -> tuple[Any, Any]:
    """(value, last) of a cursor; `last` is of type `kind`.

    Raises:
        PageError: it is no cursor, or belongs to another order.
    """
    try:
        if len(text) > _CHARACTERS:
            raise ValueError("too long")
        its_order, value, last = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        for each in (value, last):
            if isinstance(each, str):
                each.encode()  # half of a surrogate pair is no parameter of SQL
            elif isinstance(each, int) and abs(each) > _LARGEST:
                raise ValueError("too large")
        if type(last) is not kind or not isinstance(value, str | int | float | None):
            raise TypeError("another type")
    except (ValueError, TypeError, RecursionError) as error:
        raise PageError("after= is not a cursor", "take `next` of the page before") from error
    if its_order != order:
        raise PageError("after= belongs to another order", "leave it out with a new sort=")
    return value, last
