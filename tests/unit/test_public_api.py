"""The public names are a list that is changed on purpose."""

from __future__ import annotations

import types

import hermes_queue


def test_all_is_sorted_and_without_repetition() -> None:
    assert list(hermes_queue.__all__) == sorted(set(hermes_queue.__all__))


def test_all_is_what_is_visible() -> None:
    visible = {
        name
        for name in dir(hermes_queue)
        if not name.startswith("_")
        and not isinstance(getattr(hermes_queue, name), types.ModuleType)
    }
    assert visible - {"annotations"} == {n for n in hermes_queue.__all__ if not n.startswith("_")}


def test_every_public_name_resolves_and_is_documented() -> None:
    for name in hermes_queue.__all__:
        value = getattr(hermes_queue, name)
        if isinstance(value, type | types.FunctionType):
            assert value.__doc__, name


def test_consuming_results_needs_one_import() -> None:
    assert "consume" in hermes_queue.__all__
