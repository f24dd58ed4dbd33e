"""Run tests in a child process and print their report. Runs in the slot, never imported.

Reads one JSON object from stdin: {"runner": text, "arguments": [...], "targets": [...], "only":
[...] or null, "distributions": [...] or null, "limit_s": seconds, "longest_s": seconds,
"most_ids": N, "token": text}. "runner" is "pytest", which gets the arguments, the plugins of the
distributions or, without them, those that it finds, and the targets; or one that
program_session.py knows. A child that reports more than `most_ids` node ids is stopped. After the
tests have ended it writes one JSON object per line to stdout: {"id", "outcome", "message"} for each
node id, then {"end": token, "exit_status": N, "finished": bool, "timed_out": bool, "flooded":
bool, "cpu_s": S, "waited_s": S, "output": text}; `finished` is true if the child announced its end
with that status.

This process never imports the package under test. Only this process has the token and the
connection to the worker; other processes of the same user cannot trace it or open its
descriptors. The child gets one pipe: only what came through it before the child ended counts,
and of several reports on one test the worst.

Must run on every Python from 3.5, which images of old packages have.
"""

import configparser
import ctypes
import glob
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Dict, List, Optional, Set  # noqa: F401 - in comments

RANK = {"passed": 0, "xpassed": 1, "skipped": 2, "xfailed": 3, "failed": 4, "error": 5}
MAX_LINE_BYTES = 64 << 10
MAX_REPORT_BYTES = 24 << 20
MAX_KEPT_BYTES = 8 << 20
"""Size of the report for the worker."""
MAX_MESSAGES_BYTES = 4 << 20
"""Size from which it has no more messages."""
MAX_OUTPUT_BYTES = 8 << 10
MESSAGE_CHARACTERS = 8000
STARVED_SHARE = 0.25
"""Share of its time that a child must have waited for a processor to get more time."""
PR_SET_DUMPABLE = 4


class Reports:
    """The child's reports so far: lines of JSON, each about one test."""

    def __init__(self, most_ids: int) -> None:
        self._most_ids = most_ids
        self._kept_bytes = 0
        self.items = {}  # type: Dict[str, Dict[str, str]]
        self.flooded = False
        self.finished = None  # type: Optional[int]
        """The exit status that the child announced."""
        self._bytes = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take data from the pipe."""
        self._bytes += len(data)
        if self._bytes > MAX_REPORT_BYTES:
            self.flooded = True
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self.flooded:
                return
            self._keep(line)
        if len(self._rest) > MAX_LINE_BYTES:
            self.flooded = True
            self._rest = b""

    def _keep(self, line: bytes) -> None:
        if len(line) > MAX_LINE_BYTES:
            self.flooded = True
            return
        try:
            entry = json.loads(line.decode())
            if "finished" in entry:
                self.finished = int(entry["finished"])
                return
            nodeid, outcome = str(entry["id"]), entry["outcome"]
            rank = RANK[outcome]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return
        old = self.items.get(nodeid)
        if old is None or rank > RANK[old["outcome"]]:
            message = str(entry.get("message", ""))[:MESSAGE_CHARACTERS]
            if self._kept_bytes > MAX_MESSAGES_BYTES:
                message = ""
            item = {"id": nodeid, "outcome": outcome, "message": message}
            self._kept_bytes += len(json.dumps(item)) + 1
            self.items[nodeid] = item
            if self._kept_bytes > MAX_KEPT_BYTES or len(self.items) > self._most_ids:
                self.flooded = True


class Session:
    """A child that runs the tests, and its two pipes."""

    def __init__(self, job: Dict[str, Any]) -> None:
        self.reports = Reports(job["most_ids"])
        self._output = b""
        self._started = time.monotonic()
        reports, reports_end = os.pipe()
        output, output_end = os.pipe()
        arguments, environment = job["arguments"], dict(os.environ)
        if job["runner"] == "pytest" and job["distributions"] is not None:
            arguments = [*plugins(job["distributions"], arguments), *arguments]
            environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        name = "session.py" if job["runner"] == "pytest" else "program_session.py"
        script = os.path.join(os.path.dirname(__file__), name)
        self._child = subprocess.Popen(  # noqa: S603 - our own runner
            [sys.executable, script, str(reports_end)],
            stdin=subprocess.PIPE,
            stdout=output_end,
            stderr=output_end,
            pass_fds=[reports_end],
            env=environment,
            start_new_session=True,
        )
        os.close(reports_end)
        os.close(output_end)
        self._selector = selectors.DefaultSelector()
        for pipe, feed in ((reports, self.reports.feed), (output, self._keep_tail)):
            os.set_blocking(pipe, False)
            self._selector.register(pipe, selectors.EVENT_READ, feed)
        try:
            self._selector.register(os.pidfd_open(self._child.pid), selectors.EVENT_READ, None)
            self._tick_s = 0.5
        except (OSError, AttributeError):
            self._tick_s = 0.05  # a kernel or Python without pidfd
        given = {key: job[key] for key in ("runner", "targets", "only")}
        message = json.dumps(dict(given, arguments=arguments)).encode()
        with suppress(OSError):  # it has already ended, which `wait` notices
            with self._child.stdin as stdin:  # type: ignore[union-attr]
                stdin.write(message)

    def wait(self, limit_s: float, longest_s: float) -> Dict[str, Any]:
        """Wait until the child has ended or its time is over; after that nothing can report.

        Its time is `limit_s`, or up to `longest_s` if other processes keep it from the
        processor.
        """
        timed_out, waited_s = False, 0.0
        deadline = self._started + limit_s
        while not self.reports.flooded:
            # Before `poll`: once that has seen the child's end, the kernel forgets its waiting
            # time.
            waited_s = max(waited_s, self._waited_s())
            if self._child.poll() is not None:
                break
            self._read(self._tick_s)
            elapsed_s = time.monotonic() - self._started
            if self._started + elapsed_s >= deadline:
                if waited_s < STARVED_SHARE * elapsed_s or elapsed_s >= longest_s:
                    timed_out = True
                    break
                deadline = self._started + min(longest_s, elapsed_s + limit_s / 2)
        with suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)
        status = self._child.wait()
        self._read(0)
        usage = os.times()
        return {
            "exit_status": status if status >= 0 else 128 - status,
            "finished": self.reports.finished == status,
            "timed_out": timed_out,
            "flooded": self.reports.flooded,
            "cpu_s": round(usage.children_user + usage.children_system, 2),
            "waited_s": round(waited_s, 2),
            "output": self._output.decode(errors="replace"),
        }

    def _keep_tail(self, data: bytes) -> None:
        self._output = (self._output + data)[-MAX_OUTPUT_BYTES:]

    def _read(self, timeout_s: float) -> None:
        """Read what the pipes hold now, at most a few megabytes."""
        for _ in range(64):
            ready = self._selector.select(timeout_s)
            timeout_s = 0
            if not ready:
                return
            for key, _events in ready:
                if key.data is None:
                    self._selector.unregister(key.fd)
                    continue
                try:
                    data = os.read(key.fd, 1 << 16)
                except BlockingIOError:
                    continue
                if not data:
                    self._selector.unregister(key.fd)
                    continue
                key.data(data)

    def _waited_s(self) -> float:
        """Seconds for which the child was ready to run and had no processor.

        0 if the processes here are enough to keep each other from it.
        """
        runnable = 0
        for path in glob.glob("/proc/[0-9]*/stat")[:1024]:
            with suppress(OSError, IndexError), open(path, "rb") as stream:
                runnable += stream.read().rpartition(b")")[2].split()[0] == b"R"
        try:
            with open("/proc/{}/schedstat".format(self._child.pid), "rb") as stream:
                waited_s = int(stream.read().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0  # not every kernel reports it
        return waited_s if runnable <= 2 * (os.cpu_count() or 1) else 0.0


def plugins(directories: List[str], arguments: List[str]) -> List[str]:
    """`-p NAME` for the pytest plugins in these directories, which agents cannot write to.

    `directories` are patterns; a plugin that `arguments` refuse (`-p no:NAME`) is left out.
    """
    names = set()  # type: Set[str]
    for directory in directories:
        for path in glob.glob(directory + "/*.dist-info/entry_points.txt"):
            table = configparser.ConfigParser(delimiters=("=",), strict=False, interpolation=None)
            table.optionxform = str  # type: ignore[assignment,method-assign]
            with suppress(configparser.Error, OSError, UnicodeDecodeError):
                table.read(path, encoding="utf-8")
                names.update(name for name, _ in table.items("pytest11"))
    refused = set(re.findall(r"(?:^|\s)no:(\S+)", " ".join(arguments).replace("-pno:", "-p no:")))
    return [word for name in sorted(names - refused) for word in ("-p", name)]


def main() -> int:
    """Run the job; returns 0 after the whole report is written."""
    # From here on, no other process of this user can use ptrace or /proc/<pid>/{fd,mem} on this
    # one.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    job = json.load(sys.stdin)
    session = Session(job)
    end = {"end": job["token"], **session.wait(job["limit_s"], job["longest_s"])}
    lines = [*session.reports.items.values(), end]
    sys.stdout.write("".join(json.dumps(line) + "\n" for line in lines))
    sys.stdout.flush()
    # Exit at once: nothing here needs a clean-up, and no child can delay it.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
