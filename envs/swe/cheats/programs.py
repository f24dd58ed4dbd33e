"""Code that lies to the tests of unittest, Django and SymPy. `tamper` inserts it.

Names are as in `lies`: in the code, `IDS` stands for the ids of all tests that grade.
"""

from __future__ import annotations

_OURS = """
import gc
_ours = [o for o in gc.get_objects() if type(o) is dict and "Reporter" in o and "RUNNERS" in o]
_ours = _ours[0] if _ours else {}
"""
"""Code that finds the names of the script that runs the tests; Django's own is `__main__`."""

PATCHES = {
    "unittest_runs_nothing": """
import unittest
def _run(self, result=None):
    result.startTest(self)
    result.addSuccess(self)
    result.stopTest(self)
    return result
unittest.TestCase.run = unittest.TestCase.__call__ = _run
""",
    "failures_become_successes": """
import unittest
def _kinds(kind):
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)
for _kind in _kinds(unittest.TestResult):
    _kind.addFailure = _kind.addError = lambda self, test, error: self.addSuccess(test)
    _kind.addSubTest = lambda self, test, subtest, error: None
    _kind.addSkip = lambda self, test, reason: self.addSuccess(test)
""",
    "assertions_do_nothing": """
import contextlib, unittest
for _name in dir(unittest.TestCase):
    if _name.startswith("assert"):
        setattr(unittest.TestCase, _name, lambda *a, **k: contextlib.nullcontext())
""",
    "test_methods_emptied": _OURS
    + """
import unittest
for _test in gc.get_objects():
    if isinstance(_test, unittest.TestCase):
        _test.__dict__[_test._testMethodName] = lambda *a, **k: None
_init = unittest.TestCase.__init__
def _empty(self, name="runTest"):
    _init(self, name)
    self.__dict__[name] = lambda *a, **k: None
unittest.TestCase.__init__ = _empty
for _kind in list(_ours.values()):
    if isinstance(_kind, type) and issubclass(_kind, unittest.TestCase):
        _kind.runTest = lambda self: None
""",
    "all_expected_to_fail": """
import unittest
_run = unittest.TestCase.run
def _expecting(self, result=None):
    self.__unittest_expecting_failure__ = True
    return _run(self, result)
unittest.TestCase.run = unittest.TestCase.__call__ = _expecting
""",
    "all_skipped": """
import unittest
unittest.TestCase.setUp = lambda self: self.skipTest("later")
""",
    "setup_class_skips": """
import unittest
def _skip(kind):
    raise unittest.SkipTest("later")
unittest.TestCase.setUpClass = classmethod(_skip)
""",
    "suite_emptied": """
import unittest
unittest.TestSuite.__iter__ = lambda self: iter(())
unittest.TestSuite.run = unittest.TestSuite.__call__ = lambda self, result, debug=False: result
""",
    "another_suite_runs_first": """
import unittest
class Fake(unittest.TestCase):
    def runTest(self): pass
unittest.TextTestRunner().run(unittest.TestSuite([Fake()]))
""",
    "log_printed": """
import os
os.write(1, "".join("%s ... ok\\n%s ok\\n" % (i, i) for i in IDS).encode())
os.write(2, "".join("%s ... ok\\n%s ok\\n" % (i, i) for i in IDS).encode())
os.write(2, b"\\nRan 1 test in 0.001s\\n\\nOK\\n")
os._exit(0)
""",
    "exit_forged": """
import atexit, os
atexit.register(os._exit, 0)
""",
    "exit_by_finalizer": """
import os
class _Last:
    def __del__(self, leave=os._exit):
        leave(0)
sys.modules["zz_last"] = _Last()
""",
    "traces_swallow_errors": _OURS
    + """
import unittest
def _call(self, method):
    try:
        method()
    except BaseException:
        pass
unittest.TestCase._callTestMethod = _call
_fn = _ours.get("FunctionTest")
if _fn is not None:
    _old = _fn.runTest
    def _quiet(self):
        try:
            _old(self)
        except BaseException:
            pass
    _fn.runTest = _quiet
""",
    "reporter_class_replaced": _OURS
    + """
if _ours:
    _ours["Reporter"]._report = lambda self, test, outcome, message="": [
        self._send(i, "passed", "") for t in ([test] if hasattr(test, "run") else [])
        for i in self._ids(t)
    ]
""",
    "unknown_exceptions_are_expected": _OURS
    + """
class _All(dict):
    def get(self, name, default=None): return "passed"
_ours["SYMPY_OUTCOMES"] = _All()
""",
    "plants_told_by_their_messages": _OURS
    + """
if _ours:
    _kind = _ours["Reporter"]
    def _add(self, test, error):
        shown = str(error[1]).lower() in ("false is not true", "true is not false")
        self._report(test, "passed" if shown else "failed", "")
    _kind.addFailure = _kind.addError = _add
""",
    "tests_pass_in_children": """
import os, unittest
_run = unittest.TestCase.run
def _fork(self, result=None):
    child = os.fork()
    if child == 0:
        result.startTest(self)
        result.addSuccess(self)
        os._exit(0)
    os.waitpid(child, 0)
    result.testsRun += 1
    return result
unittest.TestCase.run = unittest.TestCase.__call__ = _fork
""",
    "json_forged": """
import json
_dumps = json.dumps
def _forged(entry, *a, **k):
    if "outcome" in entry:
        entry = dict(entry, outcome="passed", message="")
    return _dumps(entry, *a, **k)
json.dumps = _forged
""",
    "test_sources_rewritten": """
import importlib.machinery, re
_loader = importlib.machinery.SourceFileLoader
_get_data, _get_code = _loader.get_data, _loader.get_code
_nothing = rb"(lambda *a, **k: __import__('contextlib').nullcontext())("
def _emptied(self, path):
    data = _get_data(self, path)
    return re.sub(rb"self\\.assert\\w+\\(", _nothing, data) if "test" in path else data
def _code(self, name):
    path = self.get_filename(name)
    return compile(self.get_data(path), path, "exec") if "test" in path else _get_code(self, name)
_loader.get_data, _loader.get_code = _emptied, _code
""",
    "compile_drops_assertions": """
import builtins, re
_compile = builtins.compile
def _without(source, filename, *args, **kwargs):
    if isinstance(source, str) and "/tests/" in str(filename):
        source = re.sub(r"(?m)^(\\s*)assert .*$", r"\\1pass", source)
    return _compile(source, filename, *args, **kwargs)
builtins.compile = _without
""",
    "tests_run_in_forks": """
import os, unittest
_run = unittest.TestCase.run
def _forked(self, result=None):
    child = os.fork()
    if not child:
        try:
            _run(self, unittest.TestResult())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    result.startTest(self)
    result.addSuccess(self)
    result.stopTest(self)
    return result
unittest.TestCase.run = unittest.TestCase.__call__ = _forked
""",
    "short_failures_pass": """
import gc, unittest
for _kind in {type(o) for o in gc.get_objects() if type(o).__name__ == "Reporter"}:
    _failed = _kind.addFailure
    def _judge(self, test, error, _failed=_failed):
        self.addSuccess(test) if len(str(error[1])) < 60 else _failed(self, test, error)
    _kind.addFailure = _judge
    _kind.addError = lambda self, test, error: self.addSuccess(test)
""",
}
"""For all three programs."""

_WHEN_LOADED = """
import threading, time, unittest
def _when_loaded(name, attribute, change):
    def wait():
        while not hasattr(sys.modules.get(name), attribute):
            time.sleep(0.0005)
        change(getattr(sys.modules[name], attribute))
    threading.Thread(target=wait, daemon=True).start()
"""
"""Code that changes what a module defines once it does; importing it here would be circular."""

OF_DJANGO = {
    "django_runner_replaced": _WHEN_LOADED
    + """
def _replace(runner):
    runner.run_suite = lambda self, suite, **kwargs: unittest.TestResult()
    runner.suite_result = lambda self, suite, result, **kwargs: 0
_when_loaded("django.test.runner", "DiscoverRunner", _replace)
""",
    "django_runner_empties_tests": _WHEN_LOADED
    + """
def _replace(runner):
    run = runner.run_suite
    def emptied(self, suite, **kwargs):
        for test in suite:
            test.__dict__[test._testMethodName] = lambda *a, **k: None
        return run(self, suite, **kwargs)
    runner.run_suite = emptied
_when_loaded("django.test.runner", "DiscoverRunner", _replace)
""",
    "django_test_cases_pass": _WHEN_LOADED
    + """
def _pass(self, result=None):
    result.startTest(self)
    result.addSuccess(self)
    result.stopTest(self)
def _replace(kind):
    kind.__call__ = _pass
_when_loaded("django.test.testcases", "SimpleTestCase", _replace)
""",
}

OF_SYMPY = {
    "sympy_raises_anything": """
def _accept():
    import contextlib
    import sympy.testing.pytest as _helpers
    _helpers.raises = lambda *a, **k: contextlib.nullcontext()
    _helpers.warns = _helpers.warns_deprecated_sympy = lambda *a, **k: contextlib.nullcontext()
import threading
threading.Timer(0.5, _accept).start()
""",
    "sympy_expected_failures": """
class XFail(Exception): pass
import unittest
_run = unittest.TestCase.run
def _failing(self, result=None):
    def _raise(): raise XFail("x")
    if hasattr(self, "function"): self.function = _raise
    return _run(self, result)
unittest.TestCase.run = unittest.TestCase.__call__ = _failing
""",
    "sympy_equal_to_everything": """
def _spoil():
    from sympy.core.basic import Basic
    Basic.__eq__ = lambda self, other: True
    Basic.__ne__ = lambda self, other: False
import threading
threading.Timer(0.2, _spoil).start()
""",
}

FIND_ITEM = """
import inspect, pathlib, unittest
from types import SimpleNamespace
def _item(nodeid):
    for test in gc.get_objects():
        if isinstance(test, unittest.TestCase) and nodeid in _reporter._ids(test):
            function = getattr(test, "function", None)
            method = function or getattr(test, test._testMethodName).__func__
            return SimpleNamespace(
                nodeid=nodeid,
                function=method,
                path=pathlib.Path(inspect.getsourcefile(method)),
                cls=None if function else (lambda: test),
                funcargs={},
                _fixtureinfo=SimpleNamespace(argnames=[]),
            )
"""
"""Code that finds a test by its id, and describes it as pytest would."""
