"""Run tests of unittest, Django or SymPy and report each. Runs in the slot, never imported.

`run_tests.py` starts it with the number of a pipe's descriptor. Reads one JSON object from stdin:
{"runner": "unittest", "django" or "sympy", "targets": [file, ...], "only": [...] or null}, where
`only` lists the functions to run, by the ids below. Writes lines of JSON to the pipe as
`session.py` does. Ids are those that pytest would give: `file::Class::test_x`, of SymPy's
functions `file::test_x`. A test with a description is also reported as `file::description` for
each target, since datasets of Django know many tests by nothing else.

Outcomes come from a `unittest.TestResult`, not from the programs' own output. Django's tests need
its test runner, to make databases and to order tests: it gets our result in place of its own.
SymPy's functions need none of its runner, so they are called here.

Must run on every Python from 3.5.
"""

import inspect
import json
import os
import random
import re
import runpy
import sys
import traceback
import unittest
import warnings
from contextlib import suppress
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

MESSAGE_CHARACTERS = 2000
MESSAGE_FRAMES = 20
SOME_FAILED, GAVE_UP, NO_TESTS = 1, 4, 5
"""Exit statuses, with pytest's meanings."""
SYMPY_OUTCOMES = {"XFail": "xfailed", "XPass": "xpassed", "Skipped": "skipped"}
"""Exceptions of SymPy's that are no failures, by name: each version has them in another module."""


class FunctionTest(unittest.TestCase):
    """A test function of SymPy's, as a test case."""

    def __init__(self, nodeid: str, function: Callable[[], Any]) -> None:
        super().__init__("runTest")
        self.nodeid = nodeid
        self.function = function

    def runTest(self) -> None:
        """Call the function as SymPy's runner does."""
        if getattr(self.function, "_slow", False):
            self.skipTest("slow")
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*", DeprecationWarning, module="sympy.*")
            random.seed(0)
            made = self.function()
            steps = made if inspect.isgenerator(made) else []  # type: Any
            for each in steps:
                each[0](*each[1:])


class NotCollected(unittest.TestCase):
    """Stands for a module that cannot be imported; it never runs."""

    def runTest(self) -> None:
        """Do nothing."""


class Reporter(unittest.TestResult):
    """Writes outcomes to a pipe."""

    def __init__(self, pipe: int, targets: List[str], only: Optional[List[str]]) -> None:
        super().__init__()
        self._pipe = open(pipe, "w", encoding="utf-8", buffering=1)
        self._targets = targets
        self._only = None if only is None else frozenset(only)
        self._tests = []  # type: List[unittest.TestCase]
        self._some_failed = False
        self.started = False
        """Whether a suite was run, or is."""

    def run_suite(self, suite: Any) -> "Reporter":
        """Run what is to run of the suite."""
        self.started = True
        self._keep(suite)
        self._tests = list(_cases(suite))
        self.startTestRun()
        try:
            suite(self)
        finally:
            self.stopTestRun()
        return self

    def not_collected(self, file: str, error: Any) -> None:
        """Report a module that cannot be imported."""
        self._send(file, "error", _message(error))

    def finish(self) -> int:
        """Report that the tests have ended; returns the exit status."""
        status = NO_TESTS if not self.testsRun else 0
        status = SOME_FAILED if self._some_failed else status
        self._write({"finished": status})
        return status

    def addSuccess(self, test: Any) -> None:
        """Report a test that passed."""
        super().addSuccess(test)
        self._report(test, "passed")

    def addFailure(self, test: Any, err: Any) -> None:
        """Report a test whose assertion failed."""
        super().addFailure(test, err)
        self._report(test, "failed", _message(err))

    def addError(self, test: Any, err: Any) -> None:
        """Report a test that raised, or all tests that a broken fixture keeps from running."""
        outcome = None
        if isinstance(test, FunctionTest):
            outcome = SYMPY_OUTCOMES.get(err[0].__name__)
        if outcome is None:
            super().addError(test, err)
        self._report(test, outcome or "error", "" if outcome else _message(err))

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        """Report a test of which a part failed."""
        super().addSubTest(test, subtest, err)
        if err is not None:
            failed = issubclass(err[0], test.failureException)
            self._report(test, "failed" if failed else "error", _message(err))

    def addSkip(self, test: Any, reason: str) -> None:
        """Report a test that was skipped."""
        super().addSkip(test, reason)
        self._report(test, "skipped")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        """Report a test that failed as expected."""
        super().addExpectedFailure(test, err)
        self._report(test, "xfailed")

    def addUnexpectedSuccess(self, test: Any) -> None:
        """Report a test that passed and was expected to fail."""
        super().addUnexpectedSuccess(test)
        self._report(test, "xpassed")

    def _report(self, test: Any, outcome: str, message: str = "") -> None:
        test = getattr(test, "test_case", test)  # of a subtest
        if isinstance(test, unittest.TestCase):
            tests = [test]
        else:
            tests = self._kept_from_running(str(test))
        for each in tests:
            for nodeid in self._ids(each):
                self._send(nodeid, outcome, message)
        if not tests and outcome in ("failed", "error"):
            self._send(str(test), outcome, message)

    def _kept_from_running(self, holder: str) -> List[unittest.TestCase]:
        """The tests that `setUpClass (m.C)` or `setUpModule (m)` should have prepared."""
        found = re.match(r"setUp(?:Class|Module) \((.*)\)", holder)
        return [test for test in self._tests if found and found.group(1) in _owners(test)]

    def _send(self, nodeid: str, outcome: str, message: str) -> None:
        self._some_failed = self._some_failed or outcome in ("failed", "error")
        self._write({"id": nodeid, "outcome": outcome, "message": message})

    def _write(self, entry: Dict[str, Any]) -> None:
        self._pipe.write(json.dumps(entry) + "\n")

    def _ids(self, test: unittest.TestCase) -> List[str]:
        """The test's id, and those that its description makes."""
        if isinstance(test, FunctionTest):
            return [test.nodeid]
        described = ""
        with suppress(Exception):  # a method of the class under test
            described = (test.shortDescription() or "").strip()
        owner = type(test)
        module = sys.modules.get(owner.__module__)
        file = _relative(str(getattr(module, "__file__", "")))
        name = getattr(test, "_testMethodName", "")
        ids = ["::".join([file, *owner.__qualname__.split("."), str(name)])]
        if described:
            ids += ["::".join([target, described]) for target in self._targets]
        return ids

    def _wanted(self, test: unittest.TestCase) -> bool:
        if isinstance(test, NotCollected):
            return False
        functions = (nodeid.partition("[")[0] for nodeid in self._ids(test))
        return self._only is None or any(each in self._only for each in functions)

    def _keep(self, suite: Any) -> None:
        """Remove the tests that are not to run from the suite and those in it."""
        kept = []
        for each in suite:
            if not isinstance(each, unittest.TestCase):
                self._keep(each)
                kept.append(each)
            elif self._wanted(each):
                kept.append(each)
        suite._tests = kept


def runner_for(reporter: Reporter) -> type:
    """A text runner whose first run goes to the reporter; tests of runners start further ones."""

    class Runner(unittest.TextTestRunner):
        def run(self, test: Any) -> Any:
            return super().run(test) if reporter.started else reporter.run_suite(test)

    return Runner


class Loader(unittest.TestLoader):
    """Loads modules by name, and reports those that cannot be imported."""

    def __init__(self, reporter: Reporter, files: Dict[str, str]) -> None:
        super().__init__()
        self._reporter = reporter
        self._files = files

    def loadTestsFromName(self, name: str, module: Any = None) -> Any:
        """The tests of a module."""
        if module is None and name in self._files:
            try:
                __import__(name)
            except Exception as error:  # noqa: BLE001 - it may be any
                if not isinstance(error, unittest.SkipTest):
                    self._reporter.not_collected(self._files[name], sys.exc_info())
                return self.suiteClass([NotCollected()])
        return super().loadTestsFromName(name, module)


def _cases(suite: Iterable[Any]) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestCase):
            yield each
        else:
            yield from _cases(each)


def _owners(test: unittest.TestCase) -> Tuple[str, str]:
    owner = type(test)
    return owner.__module__, "{}.{}".format(owner.__module__, owner.__qualname__)


def _relative(path: str) -> str:
    """The path as ids have it: relative to the repository, if it is inside."""
    found = os.path.relpath(os.path.realpath(path))
    return path if found.startswith("..") else found


def _message(error: Any) -> str:
    """What was raised, and the traceback as lines `path:line: in function`, outermost first."""
    try:
        text = "{}: {}".format(error[0].__name__, error[1])[:MESSAGE_CHARACTERS]
        frames = traceback.extract_tb(error[2])[-MESSAGE_FRAMES:]
        places = ["{}:{}: in {}".format(_relative(f[0]), f[1], f[2]) for f in frames]
        return "\n".join([text, *places])
    except Exception:  # noqa: BLE001 - its words come from the code under test
        return "an error without a message"


def _dotted(target: str) -> Tuple[str, str]:
    """The directory from which a module is imported, and its name there."""
    folder, _, name = target.rpartition("/")
    parts = [name[:-3]]
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, _, name = folder.rpartition("/")
        parts.insert(0, name)
    return os.path.abspath(folder), ".".join(parts)


def run_unittest(reporter: Reporter, targets: List[str]) -> None:
    """Run the modules as `python -m unittest` does."""
    if not sys.warnoptions:
        warnings.simplefilter("default")
    modules = [_dotted(target) for target in targets]
    sys.path[:0] = sorted({root for root, _ in modules} - set(sys.path))
    loader = Loader(reporter, {name: file for (_, name), file in zip(modules, targets)})
    names = [name for _, name in modules]
    reporter.run_suite(loader.suiteClass([loader.loadTestsFromName(name) for name in names]))


def run_django(reporter: Reporter, targets: List[str]) -> None:
    """Run the repository's own tests/runtests.py, in this process."""
    script = os.path.abspath("tests/runtests.py")
    with open(script, encoding="utf-8") as stream:
        options = ["--settings=test_sqlite", "--verbosity=1"]
        options += ["--parallel=1"] if '"--parallel"' in stream.read().replace("'", '"') else []
    labels = [re.sub(r"^tests/", "", target)[:-3].replace("/", ".") for target in targets]
    plain = unittest.TextTestRunner, unittest.defaultTestLoader
    unittest.TextTestRunner = runner_for(reporter)  # type: ignore[misc,assignment]
    unittest.defaultTestLoader = Loader(reporter, dict(zip(labels, targets)))
    sys.path[0] = os.path.dirname(script)
    sys.argv = [script, *options, *labels]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit:
        if not reporter.started:
            raise
    finally:
        unittest.TextTestRunner, unittest.defaultTestLoader = plain  # type: ignore[misc]


def run_sympy(reporter: Reporter, targets: List[str]) -> None:
    """Call the test functions of the files, in the order in which they stand."""
    suite = unittest.TestSuite()
    for target in targets:
        path, found = os.path.abspath(target), {"__file__": os.path.abspath(target)}
        try:
            with open(path, encoding="utf-8") as stream:
                code = compile(stream.read(), path, "exec", flags=0, dont_inherit=True)
            exec(code, found)  # noqa: S102 - as SymPy's own runner does
            functions = [] if found.get("disabled") else list(_functions(found, path))
        except Exception:  # noqa: BLE001 - it may be any
            reporter.not_collected(target, sys.exc_info())
            continue
        for _, name, function in sorted(functions, key=lambda each: each[:2]):
            suite.addTest(FunctionTest("{}::{}".format(target, name), function))
    with suppress(KeyError, AttributeError):
        sys.modules["sympy.core.cache"].clear_cache()
    reporter.run_suite(suite)


def _functions(found: Dict[str, Any], path: str) -> Iterator[Tuple[int, str, Callable[[], Any]]]:
    """Line, name and function of each test that a file defines itself."""
    for name, function in found.items():
        if name.startswith("test_") and inspect.isfunction(function):
            own = inspect.unwrap(function).__code__
            if own.co_filename == path:
                yield own.co_firstlineno, function.__name__, function


RUNNERS = {"unittest": run_unittest, "django": run_django, "sympy": run_sympy}


def main() -> int:
    """Run the tests and return the exit status."""
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    job = json.loads(sys.stdin.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    sys.path[0] = os.getcwd()
    reporter = Reporter(pipe, job["targets"], job["only"])
    try:
        RUNNERS[job["runner"]](reporter, job["targets"])
    except (Exception, SystemExit):  # noqa: BLE001 - of the code under test
        traceback.print_exc()
        return GAVE_UP
    return reporter.finish()


if __name__ == "__main__":
    sys.exit(main())
