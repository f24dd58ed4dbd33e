"""Default values that pages spell out beside a setting are the settings' own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pages import PAGES, ROOT, page_id, prose

from hermes_queue.settings import LeaseSettings, sections

GENERATED = {"docs/configuration.md", "docs/cli.md"}
HISTORY = {"CHANGELOG.md"}
WRITTEN = [page for page in PAGES if page_id(page) not in GENERATED | HISTORY]
NUMBERS = {"a": 1.0, "an": 1.0}
UNITS = {
    **{"s": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800},
    **{"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "MB": 1},
}
VALUE = r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?|an?) ?(KiB|MiB|GiB|MB|s\b|[a-z]*)"
BESIDE = (
    re.compile(rf"{VALUE} \(`(?P<name>HERMES_QUEUE_\w+)`"),  # 30 s (`HERMES_QUEUE_...`)
    re.compile(rf"`(?P<name>HERMES_QUEUE_\w+)` \({VALUE}\)"),  # `HERMES_QUEUE_...` (32)
    re.compile(rf"`(?P<name>HERMES_QUEUE_\w+)`, {VALUE}\)"),  # (`HERMES_QUEUE_...`, 16)
    re.compile(rf"\| `(?P<name>HERMES_QUEUE_\w+)` \| {VALUE} \|"),  # a row of a table
)


@cache
def defaults() -> dict[str, float]:
    """Variable -> its default, of those that are numbers; seconds, bytes or a count."""
    return {
        f"{section.model_config.get('env_prefix', '')}{name}".upper(): float(field.default)
        for section in sections()
        for name, field in section.model_fields.items()
        if isinstance(field.default, (int, float)) and not isinstance(field.default, bool)
    }


def spelled_out(text: str) -> Iterator[tuple[str, str, float]]:
    """Each (variable, what stands beside it, that as a number) in a page."""
    for pattern in BESIDE:
        for match in pattern.finditer(" ".join(text.split())):
            number, unit = (group for group in match.groups() if group != match["name"])
            if match["name"] not in defaults() or (number in NUMBERS and unit not in UNITS):
                continue
            amount = NUMBERS[number] if number in NUMBERS else float(number.replace(",", ""))
            factor = UNITS.get(unit) or UNITS.get(unit.removesuffix("s")) or 1
            yield match["name"], f"{number} {unit}".strip(), amount * factor


def wrong(text: str) -> set[tuple[str, str]]:
    return {(name, words) for name, words, value in spelled_out(text) if value != defaults()[name]}


@pytest.mark.parametrize("page", WRITTEN, ids=page_id)
def test_defaults_in_a_page_are_those_of_the_settings(page: Path) -> None:
    assert wrong(page.read_text(encoding="utf-8")) == set()


def test_defaults_are_found_in_all_forms_that_the_pages_use() -> None:
    found = [entry for page in WRITTEN for entry in spelled_out(page.read_text(encoding="utf-8"))]
    assert len({name for name, _, _ in found}) >= 25


@pytest.mark.parametrize(
    "text",
    [
        "leases of 41 s (`HERMES_QUEUE_LEASE_DURATION_S`)",
        "records above 9 MiB (`HERMES_QUEUE_RESULTS_INLINE_MAX_BYTES`)",
        "after two hours or a day (`HERMES_QUEUE_RESULTS_RETENTION_S`; sooner when full)",
        "at 100,000 jobs\n(`HERMES_QUEUE_PRODUCER_BACKLOG_MAX`)",
        "starts with `HERMES_QUEUE_LIMITER_START_CALLS` (64)",
        "| `HERMES_QUEUE_LOCAL_MEMORY_MB` | 1024 | per slot |",
    ],
)
def test_a_wrong_default_is_found(text: str) -> None:
    assert len(wrong(text)) == 1


def lease_times(text: str) -> set[float]:
    """Seconds in sentences about leases and their renewal."""
    sentences = re.split(r"(?<=[.|])\s", text)
    about = [each for each in sentences if re.search(r"\blease[sd]?\b.*\brenew", each, re.DOTALL)]
    return {float(n) for each in about for n in re.findall(r"\b(\d+(?:\.\d+)?) s\b", each)}


def test_lengths_of_leases_are_the_defaults() -> None:
    lease = LeaseSettings()
    known = {lease.duration_s, lease.renew_s, lease.sweep_s, lease.mover_s}
    found = {page_id(page): lease_times(prose(page)) - known for page in WRITTEN}
    assert {page: times for page, times in found.items() if times} == {}
    assert lease_times("A lease lasts 50 s and is renewed.") == {50.0}
    home = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    assert lease_times(home) == {lease.duration_s, lease.renew_s}
