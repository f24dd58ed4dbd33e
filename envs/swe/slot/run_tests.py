"""Run pytest and report every test by its exact node id. Runs in the slot, never imported.

Reads one JSON object from stdin: {"arguments": [...], "report": path, "token": text}.
Writes the report, one JSON object per line, after pytest has ended; its last line is
{"end": token, "exit_status": N}. A report without it was cut short.

Test ids and the report's path are on no command line and in no environment variable.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

RANK = {"passed": 0, "xpassed": 1, "skipped": 2, "xfailed": 3, "failed": 4, "error": 5}
MESSAGE_CHARACTERS = 2000
MESSAGE_FRAMES = 20


class Report:
    """A pytest plugin that keeps the worst outcome of each node id."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Setup and teardown count only when they do not pass."""
        if report.when == "call" or not report.passed:
            self._keep(report.nodeid, _outcome(report), _message(report))

    def pytest_collectreport(self, report: Any) -> None:
        """A module that cannot be imported."""
        if report.failed:
            self._keep(report.nodeid, "error", _message(report))

    def _keep(self, nodeid: str, outcome: str, message: str) -> None:
        old = self.items.get(nodeid)
        if old is None or RANK[outcome] > RANK[old["outcome"]]:
            self.items[nodeid] = {"id": nodeid, "outcome": outcome, "message": message}


def _outcome(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    return "skipped" if report.skipped else "passed"


def _message(report: Any) -> str:
    if not report.failed:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash else report.longrepr)[:MESSAGE_CHARACTERS]
    return "\n".join([text, *_frames(report)])


def _frames(report: Any) -> list[str]:
    """The traceback as lines `path:line: in function`, outermost first."""
    traceback = getattr(report.longrepr, "reprtraceback", None)
    entries = getattr(traceback, "reprentries", ())[-MESSAGE_FRAMES:]
    places = [place for entry in entries if (place := getattr(entry, "reprfileloc", None))]
    return [f"{place.path}:{place.lineno}: {place.message}" for place in places]


def main() -> int:
    """Run the tests and answer pytest's exit status."""
    job = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    import pytest

    # As `python -m pytest` has it: the repository comes first.
    sys.path[0] = os.getcwd()
    sys.argv = [os.path.join(os.path.dirname(pytest.__file__), "__main__.py"), *job["arguments"]]
    report = Report()
    status = int(pytest.main(job["arguments"], plugins=[report]))
    with open(job["report"], "w", encoding="utf-8") as stream:
        for item in report.items.values():
            stream.write(json.dumps(item) + "\n")
        stream.write(json.dumps({"end": job["token"], "exit_status": status}) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
