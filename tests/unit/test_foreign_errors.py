"""An exception of an extension's code names the line of that code, in bounded text."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel

from hermes_queue.errors import EnvBug, foreign_error, stage
from hermes_queue.tools.base import make_call

CODE = """\
import json
from pydantic import BaseModel, field_validator
from hermes_queue.tools.base import make_call

class Odd(Exception):
    def __str__(self):
        raise ValueError("no text")

class Item(BaseModel):
    number: int
    @field_validator("number")
    def check(cls, value):
        return value.missing

def in_library(): json.loads("{")
def in_ours(): make_call("id", "tool", value=object())
def in_validator(): Item(number=1)
def odd(): raise Odd
def long(): raise ValueError("x" * 10_000_000)
async def fails(): raise KeyError("a")
def grouped():
    import asyncio
    async def both():
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
    asyncio.run(both())
"""


def module(path: Path, name: str = "their_code") -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CODE)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def raised(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as found:  # noqa: PT011 - each raises another one
        call()
    trace = found.value.__traceback__
    assert trace
    return found.value.with_traceback(trace.tb_next)  # as if a frame of ours had caught it


@pytest.mark.parametrize("folder", ["loose", "site-packages"])
@pytest.mark.parametrize(
    ("name", "line", "text"),
    [
        ("in_library", 15, "JSONDecodeError: Expecting property name"),
        ("in_ours", 16, "TypeError: Object of type object is not JSON"),
        ("in_validator", 13, "AttributeError: 'int' object has no attribute 'missing'"),
        ("odd", 18, "Odd: its text cannot be made"),
        ("grouped", 20, "KeyError: 'a'"),
    ],
)
def test_an_exception_names_the_innermost_line_of_the_extension(
    tmp_path: Path, folder: str, name: str, line: int, text: str
) -> None:
    file = tmp_path / folder / "their_code.py"
    shown = foreign_error(raised(getattr(module(file), name)))
    assert shown.startswith(text)
    assert shown.endswith(f" ({file}:{line})")


def test_the_text_is_bounded(tmp_path: Path) -> None:
    error = raised(module(tmp_path / "their_code.py").long)
    assert len(foreign_error(error)) < 1400


def test_without_a_line_of_an_extension_none_is_named() -> None:
    class Item(BaseModel):
        number: int

    for call in (
        partial(Item.model_validate, {}),
        partial(make_call, "id", "tool", value=object()),
        partial(json.loads, "{"),
    ):
        assert "(/" not in foreign_error(raised(call))


def test_a_stage_reports_the_line_and_the_cause_stays_an_env_bug(tmp_path: Path) -> None:
    theirs = module(tmp_path / "their_code.py")
    with pytest.raises(EnvBug, match=r"^JSONDecodeError: .* \(.*their_code\.py:15\)$"):
        with stage("verify"):
            theirs.in_library()
