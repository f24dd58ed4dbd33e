"""Token ids, masks and logprobs as blocks of memory.

A record has thousands of such numbers. Python objects for each would cost more than the rest of
the record together, wherever it is validated, copied, encoded or decoded.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, overload

from pydantic import GetCoreSchemaHandler, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, SchemaSerializer, core_schema

TypeCode = Literal["i", "f", "B"]
"""int32, float32 or uint8, by the codes of `struct` and `array`."""
N = TypeVar("N", int, float)


class PackedArray(Sequence[N]):
    """An immutable sequence of numbers of one C type; it equals the tuple of its values.

    It is made without a look at its elements, since any bits are a number of its type.
    `numpy.asarray()` gives a read-only view of it, without a copy. Libraries that look for lists
    and tuples (`json`, pyarrow) need a `list()` of it, pandas' `to_json` a `default_handler=list`;
    models that contain one are dumped as if it were a tuple.
    """

    __slots__ = ("_view",)
    _view: memoryview[Any]
    __pydantic_serializer__: ClassVar[SchemaSerializer] = SchemaSerializer(
        core_schema.any_schema(serialization=core_schema.plain_serializer_function_ser_schema(list))
    )
    """For fields of any type, such as a report that quotes token ids."""

    def __init__(self, typecode: TypeCode, data: bytes) -> None:
        """An array of the numbers in `data`, in this machine's byte order.

        Raises ValueError if `data` ends within a number.
        """
        if len(data) % struct.calcsize(typecode):
            raise ValueError(f"{len(data)} bytes are no whole numbers of type {typecode!r}")
        self._view = memoryview(data).cast(typecode)

    @property
    def typecode(self) -> TypeCode:
        """The type of the numbers."""
        code: TypeCode = self._view.format  # type: ignore[assignment]
        return code

    def tobytes(self) -> bytes:
        """The numbers in this machine's byte order."""
        return self._view.tobytes()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """How numpy finds the memory: https://numpy.org/doc/stable/reference/arrays.interface.html."""
        order = "<" if sys.byteorder == "little" else ">"
        kind = {"i": f"{order}i4", "f": f"{order}f4", "B": "|u1"}[self.typecode]
        return {"version": 3, "shape": (len(self),), "typestr": kind, "data": self._view}

    @overload
    def __getitem__(self, key: int) -> N: ...
    @overload
    def __getitem__(self, key: slice) -> PackedArray[N]: ...
    def __getitem__(self, key: int | slice) -> N | PackedArray[N]:
        if not isinstance(key, slice):
            number: N = self._view[key]
            return number
        part = self._view[key]
        if part.contiguous:
            made = PackedArray.__new__(PackedArray)
            made._view = part
            return made
        return PackedArray(self.typecode, part.tobytes())

    def __len__(self) -> int:
        return len(self._view)

    def __iter__(self) -> Iterator[N]:
        return iter(self._view.tolist())

    def index(self, value: Any, start: int = 0, stop: int = sys.maxsize) -> int:
        """The first position of `value`. Raises ValueError if it does not occur."""
        return self._view.tolist().index(value, start, stop)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedArray):
            return bool(self._view == other._view)
        if isinstance(other, tuple | list):
            return len(self) == len(other) and self._view.tolist() == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedArray, (self.typecode, self.tobytes())


def packed_bytes(typecode: TypeCode, values: Sequence[float]) -> bytes:
    """The numbers as one block, in this machine's byte order; floats are rounded.

    Raises:
        OverflowError: an integer does not fit.
        TypeError: a value is of another kind.
    """
    if isinstance(values, PackedArray) and values.typecode == typecode:
        return values.tobytes()
    try:
        return struct.pack(f"{len(values)}{typecode}", *values)
    except struct.error:  # which does not tell numbers that are too large from other values
        return array(typecode, values).tobytes()


def joined(parts: Sequence[Sequence[N]]) -> Sequence[N]:
    """All parts in one sequence: an array if each part is one of the same type, else a tuple."""
    arrays = [part for part in parts if isinstance(part, PackedArray)]
    codes = {part.typecode for part in arrays}
    if len(arrays) < len(parts) or len(codes) != 1:
        return tuple(number for part in parts for number in part)
    return PackedArray(codes.pop(), b"".join([part.tobytes() for part in arrays]))


@dataclass(frozen=True, slots=True)
class _Packed:
    """Annotation of a field: lists and tuples of numbers become arrays of this type.

    Numbers that such an array cannot give back, such as a float64 or an integer of 64 bits, are
    validated one by one and kept in a tuple.
    """

    typecode: TypeCode

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        kind = tuple[float, ...] if self.typecode == "f" else tuple[int, ...]
        plain = handler.generate_schema(kind)
        dump = core_schema.plain_serializer_function_ser_schema(tuple, return_schema=plain)
        return core_schema.no_info_wrap_validator_function(
            self._validated, plain, serialization=dump
        )

    def _validated(self, value: Any, one_by_one: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, PackedArray):
            if value.typecode != self.typecode:
                raise ValueError(f"numbers of type {value.typecode!r} instead of {self.typecode!r}")
            return value
        if not isinstance(value, list | tuple):
            return one_by_one(value)
        made = self._packed(value)
        # Of JSON a strict validator sees a list here, and takes none for a tuple.
        return one_by_one(tuple(value)) if made is None else made

    def _packed(self, values: Sequence[Any]) -> PackedArray[Any] | None:
        try:
            data = struct.pack(f"{len(values)}{self.typecode}", *values)
        except struct.error:
            return None
        made: PackedArray[Any] = PackedArray(self.typecode, data)
        return made if self.typecode != "f" or made == values else None


TokenIds = Annotated[Sequence[int], _Packed("i")]
LossMask = Annotated[Sequence[int], _Packed("B")]
Logprobs = Annotated[Sequence[float], _Packed("f")]
