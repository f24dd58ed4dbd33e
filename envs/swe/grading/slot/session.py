"""Run pytest and report every test by its exact node id. Runs in the slot, never imported.

`run_tests.py` starts it with the number of a pipe's descriptor. Reads one JSON object from
stdin: {"arguments": [...], "targets": [...], "only": [...] or null}, where `only` lists the
functions to run (node ids without parameters). Writes a line of JSON to the pipe for each outcome
as it becomes known, and {"finished": exit status} when pytest has ended. No test id is on a command
line or in an environment variable.

Must run on every Python from 3.5 and every pytest from 3.
"""

import json
import os
import sys
from typing import Any, Dict, List, Optional

MESSAGE_CHARACTERS = 2000
MESSAGE_FRAMES = 20


class Reporter:
    """A pytest plugin that writes outcomes to a pipe and can deselect most tests."""

    def __init__(self, pipe: int, only: Optional[List[str]]) -> None:
        self._pipe = open(pipe, "w", encoding="utf-8", buffering=1)
        self._only = None if only is None else frozenset(only)

    def pytest_collection_modifyitems(self, config: Any, items: List[Any]) -> None:
        """Deselect functions that are not in `only`."""
        if self._only is None:
            return
        kept = [item for item in items if _function(item) in self._only]
        others = [item for item in items if _function(item) not in self._only]
        config.hook.pytest_deselected(items=others)
        items[:] = kept

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Report a test; setup and teardown only if they do not pass."""
        if report.when == "call" or not report.passed:
            self._send(report.nodeid, _outcome(report), _message(report))

    def pytest_collectreport(self, report: Any) -> None:
        """Report a module that cannot be imported."""
        if report.failed:
            self._send(report.nodeid, "error", _message(report))

    def finish(self, status: int) -> None:
        """Report that pytest has ended."""
        self._write({"finished": status})

    def _send(self, nodeid: str, outcome: str, message: str) -> None:
        # Before 4.1, pytest named the instance of a class, too.
        nodeid = nodeid.replace("::()", "")
        self._write({"id": nodeid, "outcome": outcome, "message": message})

    def _write(self, entry: Dict[str, Any]) -> None:
        self._pipe.write(json.dumps(entry) + "\n")


def _function(item: Any) -> str:
    return str(item.nodeid).replace("::()", "").partition("[")[0]


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


def _frames(report: Any) -> List[str]:
    """The traceback as lines `path:line: in function`, outermost first."""
    traceback = getattr(report.longrepr, "reprtraceback", None)
    entries = getattr(traceback, "reprentries", ())[-MESSAGE_FRAMES:]
    places = [getattr(entry, "reprfileloc", None) for entry in entries]
    return ["{0.path}:{0.lineno}: {0.message}".format(place) for place in places if place]


def main() -> int:
    """Run the tests and return pytest's exit status."""
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    job = json.loads(sys.stdin.read())
    arguments = job["arguments"] + job["targets"]
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    import pytest

    # As with `python -m pytest`: the repository comes first.
    sys.path[0] = os.getcwd()
    sys.argv = [os.path.join(os.path.dirname(pytest.__file__), "__main__.py"), *arguments]
    reporter = Reporter(pipe, job["only"])
    status = int(pytest.main(arguments, plugins=[reporter]))
    reporter.finish(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
