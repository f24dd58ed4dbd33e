"""What the host's /usr holds besides the standard library, and how slots lose sight of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from slot_bench import leased_slot

from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.host.isolation import HostPython, host_python
from hermes_queue.sandbox.local import fence


def make(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x = 1\n")
    return path


def test_installed_packages_are_found_wherever_they_lie(tmp_path):
    make(tmp_path / "lib/python3/dist-packages/parse/__init__.py")
    make(tmp_path / "local/lib/python3.11/site-packages/parse.py")
    assert sorted(host_python(tmp_path).installed) == [
        tmp_path / "lib/python3/dist-packages",
        tmp_path / "local/lib/python3.11/site-packages",
    ]


def test_packages_that_other_programs_carry_are_found_by_name(tmp_path):
    package = make(tmp_path / "lib/some-sdk/third_party/parse/__init__.py").parent
    module = make(tmp_path / "share/tool/parse.py")
    assert sorted(host_python(tmp_path).strays["parse"]) == [package, module]


def test_the_standard_library_is_no_stray(tmp_path):
    make(tmp_path / "lib/python3.11/calendar.py")
    make(tmp_path / "lib/python3.11/json/decoder.py")
    assert "calendar" not in host_python(tmp_path).strays


async def test_a_concealed_package_is_empty_in_the_slot(monkeypatch: pytest.MonkeyPatch):
    strays = {"parse": (Path("/usr/share/zoneinfo"), Path("/usr/bin/tac"))}
    monkeypatch.setattr(fence, "host_python", lambda: HostPython((), strays))
    look = "ls -A /usr/share/zoneinfo | wc -l; wc -c < /usr/bin/tac"
    async with leased_slot(SlotSpec(conceal=("parse",))) as slot:
        concealed = await slot.run(look)
    assert concealed.stdout.split() == [b"0", b"0"]
