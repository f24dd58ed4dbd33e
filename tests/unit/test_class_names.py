"""A type's name stands once in the product: who searches for it finds it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("hermes_queue", "workers", "producers", "envs")
PRIVATE_TO_THE_SLOT = ROOT / "envs" / "swe" / "grading" / "slot"
"""Programs that are copied into slots and import nothing of ours."""
TYPE = re.compile(r"^class ([A-Z]\w*)|^([A-Z]\w*[a-z]\w*)(?:: TypeAlias)? = ", re.MULTILINE)
"""A public class, or another public name in CamelCase: an alias of a type."""


def test_no_public_type_has_the_name_of_another() -> None:
    names = Counter(
        found[1] or found[2]
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.is_relative_to(PRIVATE_TO_THE_SLOT)
        for found in TYPE.finditer(path.read_text(encoding="utf-8"))
    )
    assert names["TrajectoryJob"] == names["BeginVerdict"] == 1
    assert [name for name, count in names.items() if count > 1] == []
