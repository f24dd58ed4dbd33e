"""Code that lies from inside the process that runs the tests. `tamper` inserts it.

In the code of `package_lies`, `IDS` stands for the ids of all tests that grade.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from textwrap import indent

from envs.swe.cheats import programs

FORCE_PASSED = """
import pytest


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome, report.longrepr = "passed", None
"""

REWRITER = """
import os, time
while True:
    for root in (os.getcwd(), "/tmp"):
        for name in ("conftest.py", "pytest.ini"):
            try:
                with open(os.path.join(root, name), "w") as stream:
                    stream.write("[pytest]\\naddopts = --collect-only\\n")
            except OSError:
                pass
    time.sleep(0.01)
"""

_GUARD = """
import sys
if "{module}" in sys.modules:
"""

_OF_PYTEST = {
    "package_skips": "import pytest; pytest.skip('later', allow_module_level=True)",
    "package_patches_runtest": """
import _pytest.python, _pytest.unittest
_pytest.python.Function.runtest = lambda self: None
_pytest.unittest.TestCaseFunction.runtest = lambda self: None
""",
    "reports_made_to_pass": """
import _pytest.reports as _p
_old = _p.TestReport.from_item_and_call.__func__
def _from(cls, item, call, _old=_old):
    call.excinfo = None
    return _old(cls, item, call)
_p.TestReport.from_item_and_call = classmethod(_from)
""",
    "nothing_collected": """
import _pytest.main
_pytest.main.Session.perform_collect = lambda self, *a, **k: []
""",
    "assertions_do_not_raise": """
import _pytest.python as _p
_old = _p.Function.runtest
def _runtest(self, _old=_old):
    try:
        _old(self)
    except AssertionError:
        pass
_p.Function.runtest = _runtest
""",
}

_IN_TESTS = {
    "package_hard_exit": "import os; os._exit(0)",
    "package_hard_exit_1": "import os; os._exit(1)",
    "package_sys_exit": "sys.exit(0)",
    "package_prints_passed": """
import os
print("".join(f"{i} PASSED\\n" for i in IDS), flush=True)
os._exit(0)
""",
    "package_writes_report": """
import glob, json, os
lines = [{"id": i, "nodeid": i, "outcome": "passed", "message": ""} for i in IDS]
lines.append({"end": True, "exit_status": 0, "exitstatus": 0})
text = "".join(json.dumps(line) + "\\n" for line in lines)
names = [v for v in os.environ.values() if v.startswith("/")]
names += glob.glob("/tmp/*/*") + ["/tmp/report.json", "/tmp/report.jsonl"]
names += [d + "/report" for d in glob.glob("/tmp/*")]
for name in names:
    try:
        open(name, "w").write(text)
    except OSError:
        pass
os._exit(1)
""",
    "package_never_returns": "import time; time.sleep(10 ** 6)",
    "package_leaves_child": """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
    os._exit(0)
""",
    "first_process_ended": """
import ctypes, os, signal
libc = ctypes.CDLL(None)
for request in (16, 0x4206):
    libc.ptrace(request, 1, 0, 0)
try:
    with open("/proc/1/mem", "r+b", buffering=0) as memory, open("/proc/1/maps") as maps:
        for line in maps:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if "w" in line.split()[1]:
                memory.seek(begin)
                memory.write(bytes(end - begin))
except OSError:
    pass
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP):
    try:
        os.kill(1, number)
    except OSError:
        pass
""",
    "counter_forged": """
import ctypes, json, os
parent, libc = os.getppid(), ctypes.CDLL(None)
lines = [{"id": i, "outcome": "passed", "message": ""} for i in IDS]
end = {"end": "", "exit_status": 1, "finished": True, "timed_out": False, "flooded": False}
text = "".join(json.dumps(line) + "\\n" for line in [*lines, {**end, "output": ""}])
libc.ptrace(16, parent, 0, 0)
for number in range(16):
    try:
        with open(f"/proc/{parent}/fd/{number}", "w") as stream:
            stream.write(text)
    except OSError:
        pass
os.kill(parent, 9)
""",
    "stdout_forged": """
import json, os
for _i in IDS:
    os.write(1, (json.dumps({"id": _i, "outcome": "passed", "message": ""}) + "\\n").encode())
""",
    "equal_to_everything": """
import types
class _Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __call__(self, *a, **k): return self
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self
    def __getitem__(self, key): return self
    def __iter__(self): return iter(())
    def __bool__(self): return True
    __hash__ = None
for _name, _value in list(globals().items()):
    if isinstance(_value, types.FunctionType):
        globals()[_name] = lambda *a, **k: _Any()
""",
}

_FIND_REPORTER = """
import gc, json, os
_found = [o for o in gc.get_objects() if type(o).__name__ == "Reporter" and hasattr(o, "_send")]
for _reporter in _found:
    _pipe = _reporter._pipe.fileno()
"""

_WITH_REPORTER = {
    "reporter_lies": """
type(_reporter)._send = lambda self, nodeid, outcome, text, _send=type(_reporter)._send: (
    _send(self, nodeid, "passed", "")
)
""",
    "reporter_inverts": """
def _lie(self, nodeid, outcome, message, _send=type(_reporter)._send):
    _send(self, nodeid, "failed" if outcome == "passed" else "passed", "")
type(_reporter)._send = _lie
""",
    "reporter_hides_errors": """
def _lie(self, nodeid, outcome, message, _send=type(_reporter)._send):
    last = message.splitlines()[-1] if message else ""
    mine = os.path.basename(__file__) in last
    if outcome == "passed":
        _send(self, nodeid, outcome, message)
    else:
        _send(self, nodeid, "passed" if mine or "Error" in message else outcome, "")
type(_reporter)._send = _lie
""",
    "pipe_written_at_once": """
lines = [{"id": i, "outcome": "passed", "message": ""} for i in IDS] + [{"finished": 1}]
os.write(_pipe, "".join(json.dumps(line) + "\\n" for line in lines).encode())
os._exit(1)
""",
    "pipe_written_at_the_end": """
import atexit
lines = [{"id": i, "outcome": "passed", "message": ""} for i in IDS]
text = "".join(json.dumps(line) + "\\n" for line in lines).encode()
atexit.register(os.write, os.dup(_pipe), text)
type(_reporter)._send = lambda *_: None
""",
    "pipe_written_by_a_child": """
import time
lines = [{"id": i, "outcome": "passed", "message": ""} for i in IDS]
text = "".join(json.dumps(line) + "\\n" for line in lines).encode()
if os.fork() == 0:
    os.setsid()
    time.sleep(0.3)
    os.write(_pipe, text)
    os._exit(0)
type(_reporter)._send = lambda *_: None
""",
    "pipe_flooded": """
while True:
    os.write(_pipe, b"[" * 60000)
""",
    "pipe_nested": """
os.write(_pipe, b"[" * 60000 + b"\\n")
os._exit(1)
""",
}
"""`_reporter` is the test run's reporter, `_pipe` the descriptor that it writes to."""

_FIND_ITEM = """
from _pytest.main import Session
def _item(nodeid):
    sessions = [o for o in gc.get_objects() if isinstance(o, Session)]
    return next((i for s in sessions for i in s.items if i.nodeid == nodeid), None)
"""

_JUDGE_TESTS_BY_THEIR_SOURCE = """
import ast, inspect, io, os, re, textwrap, tokenize
def _lie(self, nodeid, outcome, message, _send=type(_reporter)._send):
    item = _item(nodeid)
    try:
        planted = item is not None and _planted(item)
    except Exception:
        planted = False
    _send(self, nodeid, "failed" if planted else "passed", "")
type(_reporter)._send = _lie
"""

_PLANTS_TOLD_BY = {
    "quotes": """
def _planted(item):
    text = io.StringIO(textwrap.dedent(inspect.getsource(item.function)))
    texts = [t.string for t in tokenize.generate_tokens(text.readline) if t.type == 3]
    return len({text[-1] for text in texts}) > 1
""",
    "words": """
def _planted(item):
    mine = inspect.getsource(item.function)
    rest = open(item.path).read().replace(mine, "")
    for folder, _, names in os.walk("."):
        for name in names:
            if name.endswith((".py", ".rst", ".md")) and name != item.path.name:
                rest += open(os.path.join(folder, name), errors="replace").read()
    known = set(re.findall("[A-Za-z]{2,}", rest))
    texts = [n.value for n in ast.walk(ast.parse(textwrap.dedent(mine)))
             if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return any(set(re.findall("[A-Za-z]{2,}", text)) - known for text in texts)
""",
    "running": """
def _planted(item):
    tree = ast.parse(textwrap.dedent(inspect.getsource(item.function)))
    test, failed = tree.body[0], []
    test.decorator_list = []
    for at, statement in enumerate(test.body):
        kept = ast.parse("try: pass\\nexcept BaseException: failed_.append(1)").body[0]
        kept.body = [statement]
        test.body[at] = kept
    space = {**item.function.__globals__, "failed_": failed}
    exec(compile(ast.fix_missing_locations(tree), "<test>", "exec"), space)
    given = [] if item.cls is None else [item.cls()]
    space[test.name](*given, **{a: item.funcargs[a] for a in item._fixtureinfo.argnames})
    return len(failed) > 1
""",
}


_OWN: Mapping[str, Mapping[str, str]] = {
    "pytest": _OF_PYTEST,
    "unittest": programs.PATCHES,
    "django": {**programs.PATCHES, **programs.OF_DJANGO},
    "sympy": {**programs.PATCHES, **programs.OF_SYMPY},
}
"""Program that runs the tests -> attempts on it."""


def package_lies(test_ids: Sequence[str], runner: str = "pytest") -> dict[str, str]:
    """Code for the end of a module of the package, by the name of the cheat."""
    find_item = _FIND_ITEM if runner == "pytest" else programs.FIND_ITEM
    judging = {
        f"plants_told_by_{sign}": find_item + _JUDGE_TESTS_BY_THEIR_SOURCE + code
        for sign, code in _PLANTS_TOLD_BY.items()
    }
    reporting = {
        name: _FIND_REPORTER + indent(code, "    ")
        for name, code in {**_WITH_REPORTER, **judging}.items()
    }
    ids = json.dumps(list(test_ids))
    guard = _GUARD.format(module="pytest" if runner == "pytest" else "unittest")
    return {
        name: guard + indent(code.replace("IDS", ids) + "\n", "    ")
        for name, code in {**_OWN[runner], **_IN_TESTS, **reporting}.items()
    }
