"""Packed arrays: sequences that equal tuples, made without a look at their elements."""

from __future__ import annotations

import copy
import json
import pickle
import struct

import numpy
import pytest
from pydantic import ValidationError
from records import make_job, make_record

from hermes_queue.models import TokenSequence, Turn
from hermes_queue.wire.arrays import PackedArray, joined

IDS = (5, -3, 2**31 - 1, 0)


def ints(values=IDS):
    return PackedArray("i", struct.pack(f"{len(values)}i", *values))


def test_an_array_is_used_like_the_tuple_of_its_values():
    array = ints()
    assert array == IDS
    assert IDS == array
    assert array == [*IDS]
    assert array != (*IDS, 1)
    assert [*array] == [*IDS]
    assert (array[0], array[-1], len(array), array.index(2**31 - 1)) == (5, 0, 4, 2)
    assert 0 in array
    assert hash(array) == hash(IDS)
    assert repr(array) == repr(IDS)
    assert not ints(())
    with pytest.raises(IndexError):
        array[4]


@pytest.mark.parametrize(
    "part", [slice(1, 3), slice(None, None, -1), slice(None, None, 2), slice(9, None)]
)
def test_a_slice_is_an_array_too(part):
    found = ints()[part]
    assert isinstance(found, PackedArray)
    assert found == IDS[part]
    assert numpy.asarray(found).tolist() == list(IDS[part])
    assert found.tobytes() == struct.pack(f"{len(found)}i", *IDS[part])


def test_arrays_of_floats_compare_as_floats_do():
    assert PackedArray("f", struct.pack("2f", 0.0, 1.0)) == (-0.0, 1)
    nan = struct.pack("f", float("nan"))
    assert PackedArray("f", nan) != PackedArray("f", nan)


def test_an_array_cannot_be_changed():
    view = numpy.asarray(ints())
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(TypeError):
        ints()[0] = 1


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_are_equal(again):
    record = make_record(make_job())
    assert again(ints()[1:]) == IDS[1:]
    assert again(record) == record


def test_numpy_sees_the_same_memory():
    array = ints()
    assert numpy.asarray(array).dtype == numpy.int32
    assert numpy.shares_memory(numpy.asarray(array), numpy.asarray(array[1:]))
    logprobs = numpy.asarray(PackedArray("f", struct.pack("2f", -0.5, 0.0)))
    assert (logprobs.dtype, logprobs.tolist()) == (numpy.float32, [-0.5, 0.0])
    assert numpy.asarray(PackedArray("B", b"\0\1")).tolist() == [0, 1]


def test_half_a_number_is_refused():
    with pytest.raises(ValueError, match="5 bytes"):
        PackedArray("i", bytes(5))


def test_only_arrays_of_one_type_are_joined_to_an_array():
    assert joined([ints(), ints((7,))]) == (*IDS, 7)
    assert isinstance(joined([ints(), ints((7,))]), PackedArray)
    assert joined([ints(), (2**40,)]) == (*IDS, 2**40)
    assert joined([ints(), PackedArray("B", b"\1")]) == (*IDS, 1)


# --- in models ----------------------------------------------------------------------------


def test_lists_and_tuples_become_arrays_and_are_dumped_as_before():
    sequence = TokenSequence(ids=[1, 2], loss_mask=(0, True), logprobs=(0, -0.5))
    fields = {"ids": (1, 2), "loss_mask": (0, 1), "logprobs": (0.0, -0.5)}
    assert all(isinstance(getattr(sequence, name), PackedArray) for name in fields)
    dumped = sequence.model_dump(include=set(fields))
    assert dumped == fields
    assert {type(value) for value in dumped.values()} == {tuple}
    text = '{"ids":[1,2],"loss_mask":[0,1],"logprobs":[0.0,-0.5]}'
    assert sequence.model_dump_json(include=set(fields)) == text
    assert TokenSequence.model_validate_json(text) == sequence
    assert sequence == TokenSequence.model_construct(**fields)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"prompt_ids": (1, 2**31)}, (1, 2**31)),
        ({"prompt_ids": ("7", 8.0)}, (7, 8)),
        ({"logprobs": (-0.1,)}, (-0.1,)),
        ({"logprobs": (1e300, 0)}, (1e300, 0.0)),
    ],
)
def test_what_an_array_cannot_give_back_is_validated_one_by_one_and_stays_a_tuple(given, kept):
    [value] = Turn(**given).model_dump(exclude_defaults=True).values()
    assert value == kept
    assert isinstance(getattr(Turn(**given), *given), tuple)


@pytest.mark.parametrize("wrong", [(1, "x"), (1, None), "12", 5, (0.5,)])
def test_what_is_no_number_is_refused_by_its_place(wrong):
    with pytest.raises(ValidationError, match="prompt_ids"):
        Turn(prompt_ids=wrong)


def test_an_array_of_another_type_is_refused():
    with pytest.raises(ValidationError, match="'f' instead of 'i'"):
        Turn(prompt_ids=PackedArray("f", bytes(8)))


def test_a_report_may_quote_token_ids():
    record = make_record(make_job()).model_copy(update={"report": {"ids": ints()}})
    assert record.model_dump()["report"] == {"ids": [*IDS]}
    assert json.loads(record.model_dump_json())["report"] == {"ids": [*IDS]}
