"""A class name stands once in the product: who searches for it finds it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("hermes_queue", "workers", "producers", "envs")
PRIVATE_TO_THE_SLOT = ROOT / "envs" / "swe" / "grading" / "slot"
"""Programs that are copied into slots and import nothing of ours."""

TWICE = {
    "Account",
    "Box",
    "Edit",
    "Intake",
    "Limits",
    "Outcome",
    "Plan",
    "Progress",
    "Refused",
    "Row",
    "Runtime",
    "Selection",
    "Tally",
    "Unfit",
    "Verdict",
}
"""Names that stand more than once; the list may only become shorter."""


def test_no_public_class_name_stands_twice() -> None:
    names = Counter(
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.is_relative_to(PRIVATE_TO_THE_SLOT)
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {name for name, count in names.items() if count > 1} == TWICE
