"""Bugs as byte edits."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from envs.swe.recipe import Edit, FileMutation, Mutation, RecipeMismatch, pin

BEFORE = "x = 'ä' < 1\n".encode()
EDITS = (Edit(start=0, end=1, text="y"), Edit(start=9, end=10, text="<="))


def test_edits_are_byte_spans_of_the_file_before() -> None:
    assert pin("a.py", BEFORE, EDITS).apply(BEFORE).decode() == "y = 'ä' <= 1\n"


def test_an_empty_span_inserts() -> None:
    assert pin("a.py", b"ab", (Edit(start=1, end=1, text="-"),)).apply(b"ab") == b"a-b"


def test_other_bytes_are_refused() -> None:
    with pytest.raises(RecipeMismatch, match="sha256_before"):
        pin("a.py", BEFORE, EDITS).apply(BEFORE + b"\n")


def test_an_altered_edit_is_refused() -> None:
    recipe = pin("a.py", BEFORE, EDITS)
    altered = recipe.model_copy(update={"edits": (Edit(start=0, end=1, text="z"),)})
    with pytest.raises(RecipeMismatch, match="sha256_after"):
        altered.apply(BEFORE)


@pytest.mark.parametrize(
    "edits",
    [
        (Edit(start=3, end=1, text=""),),
        (Edit(start=4, end=5, text=""), Edit(start=0, end=1, text="")),
        (Edit(start=0, end=5, text=""), Edit(start=4, end=6, text="")),
    ],
)
def test_edits_must_be_in_order_and_apart(edits: tuple[Edit, ...]) -> None:
    with pytest.raises(ValidationError, match="ascending"):
        pin("a.py", BEFORE, edits)


@pytest.mark.parametrize("path", ["/a.py", "../a.py", "a/../b.py", ".git/config", "", "a//b.py"])
def test_a_recipe_stays_inside_the_repository(path: str) -> None:
    with pytest.raises(ValidationError, match="inside the repository"):
        pin(path, BEFORE, EDITS)


def test_one_file_has_one_entry() -> None:
    part = pin("a.py", BEFORE, EDITS)
    with pytest.raises(ValidationError, match="twice"):
        Mutation(files=(part, part))


def test_a_recipe_survives_json() -> None:
    part = pin("a.py", BEFORE, EDITS)
    assert FileMutation.model_validate_json(part.model_dump_json()) == part
