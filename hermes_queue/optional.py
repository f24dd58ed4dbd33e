"""Whether an object has the methods of an optional protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from typing_extensions import TypeIs

T = TypeVar("T")


def offers(value: object, protocol: Callable[..., T]) -> TypeIs[T]:
    """Whether the class of `value` has all methods of a runtime-checkable protocol.

    `isinstance` also looks for attributes of the object itself, anew with each call, which takes
    Python 3.11 25 µs. This asks the class alone, and a class is asked once.

    Raises:
        TypeError: the protocol has members that are no methods.
    """
    return issubclass(type(value), cast(type, protocol))
