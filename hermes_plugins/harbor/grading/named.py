"""dict[str, str] by test, where a task's tests report them in a form that is read here.

`ctrf.json` in /logs/verifier, as pytest-json-ctrf and other reporters write it; else pytest's short
summary (`-rA`) in the output. Both were written in a box with the agent's work, so they explain a
verdict and are no part of it: the reward alone is the score.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from envs.named_tests import compact
from hermes_plugins.harbor.grading.reward import FOLDER
from hermes_queue.sandbox.archives import ROOT
from hermes_queue.sandbox.context import SlotContext

MAX_BYTES = 1 << 20
_SHOW = f"""\
file={FOLDER}/ctrf.json
[ -f "$file" ] && [ ! -L "$file" ] && [ ! -L {FOLDER} ] && [ ! -L /logs ] || exit 67
exec head -c {MAX_BYTES + 1} -- "$file"
"""
_HEADING = re.compile(r"(?m)^(?:\x1b\[[\d;]*m)*=+ short test summary info =+(?:\x1b\[[\d;]*m)*$")
_ENDS = re.compile(r"(?m)^(?:\x1b\[[\d;]*m)*=+ ")
_SUMMARY = re.compile(r"(?m)^(PASSED|FAILED|ERROR) (\S[^\n]{0,999})$")
_OF_A_SUMMARY = re.compile(r"(?:PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) ")
_OF_SUMMARY = {"PASSED": "passed", "FAILED": "failed", "ERROR": "failed"}


async def named_tests(context: SlotContext, output: str) -> dict[str, Any]:
    """`{"tests": {...}}` for a report, or nothing if no test is named.

    Raises:
        SandboxError: the sandbox could not answer.
    """
    result = await context.run(
        _SHOW, cwd="/", user=ROOT, timeout_s=30.0, max_output_bytes=MAX_BYTES * 2
    )
    found = of_ctrf(result.stdout) if result.ok else {}
    source = "ctrf" if found else "output"
    return reported(source, found or of_summary(output))


def reported(source: str, outcomes: dict[str, str]) -> dict[str, Any]:
    """The names of `outcomes` for a report, those of each outcome bounded."""
    if not outcomes:
        return {}
    by = {how: [t for t, each in outcomes.items() if each == how] for how in ("passed", "failed")}
    return {"tests": {"source": source, **{how: compact(tests) for how, tests in by.items()}}}


def of_ctrf(content: bytes) -> dict[str, str]:
    """Test -> passed, failed or other, of a report in the Common Test Report Format.

    A name that comes twice has failed if it has failed once. Empty for anything else.
    """
    if len(content) > MAX_BYTES:
        return {}
    try:
        tests = json.loads(content)["results"]["tests"]
        return _worst((each["name"], each["status"]) for each in tests)
    except (ValueError, RecursionError, TypeError, LookupError):
        return {}


def of_summary(output: str) -> dict[str, str]:
    """The same of the short summaries with which pytest ends its output, each below its heading.

    Lines elsewhere may be what tested programs print, such as `ERROR reading x` of a log. Where the
    output was cut, its beginning may be in a summary, which has lines of this form alone.
    """
    beginning, *below = _HEADING.split(output)
    parts = [_ENDS.split(each, maxsplit=1)[0] for each in below]
    if not below and (end := _ENDS.search(beginning)):
        parts.append(_last_lines(beginning[: end.start()]))
    # A reason follows a test that failed: "FAILED tests/a.py::test_x - assert 1 == 2".
    return _worst(
        (name if how == "PASSED" else name.split(" - ", 1)[0], _OF_SUMMARY[how])
        for part in parts
        for how, name in _SUMMARY.findall(part)
    )


def _last_lines(text: str) -> str:
    """Lines of a summary with which a text ends, if it has none but these after its first."""
    lines = text.splitlines()[1:]
    return "\n".join(lines) if all(map(_OF_A_SUMMARY.match, lines)) else ""


def _worst(pairs: Iterator[tuple[Any, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, status in pairs:
        if not isinstance(name, str) or not isinstance(status, str):
            raise TypeError
        if found.get(name) != "failed":
            found[name] = status if status in ("passed", "failed") else "other"
    return found
