"""What Python imports for the tests, measured in a box where no agent's file can be found.

pytest is run once on an empty test, by the interpreter and with the packages and plugins that
will grade, and each module that it looks for is noted, also one that is not there: an agent could
provide it. Of the modules that the tests themselves import, those are noted that are installed, and
what these look for when they are imported in turn.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from typing import Any

from hermes_queue.sandbox.archives import ROOT
from hermes_queue.sandbox.context import SlotContext

MAX_NAMES_BYTES = 1 << 20
_IMPORT = re.compile(
    r"(?m)(?:^|[;\"'])[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+([\w., \t]+))"
)
_MARK = "IMPORTED "
_NOTING = """\
import importlib.util, io, json, os, shutil, sys, tempfile
asked = json.loads(sys.argv[1])
def spec_of(name):
    try:
        return importlib.util.find_spec(name)
    except Exception:
        return None
specs = [(name, spec_of(name)) for name in asked]
installed = [[name, spec.origin] for name, spec in specs if spec and spec.has_location]
seen = set()
class Noting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        seen.add(name.partition(".")[0])
sys.meta_path.insert(0, Noting)
out, folder = os.dup(1), tempfile.mkdtemp()
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
"""
_MEASURE = f"""\
{_NOTING}
try:
    with open(os.path.join(folder, "test_nothing.py"), "w") as file:
        file.write("def test_a():\\n    assert [1] == [2]\\ndef test_b():\\n    pass\\n")
    import pytest
    pytest.main(["-rA", "--color=yes", "-p", "no:cacheprovider", "--rootdir", folder, folder])
except BaseException:
    pass
shutil.rmtree(folder, ignore_errors=True)
looked_for = sorted(seen - {{"test_nothing"}})
missing = [name for name in looked_for if name not in sys.modules and spec_of(name) is None]
answer = json.dumps([looked_for, installed, missing])
os.write(out, ("\\nIMPORTED " + answer + "\\n").encode())
os._exit(0)
"""
_IMPORT_ALL = f"""\
{_NOTING}
os.chdir(folder)
for name in asked:
    try:
        __import__(name)
    except BaseException:
        pass
    os.write(out, ("\\nIMPORTED " + json.dumps(sorted(seen)) + "\\n").encode())
os.chdir("/")
shutil.rmtree(folder, ignore_errors=True)
os._exit(0)
"""
_LIBRARY = re.compile(r".*/(?:site|dist)-packages/.*")
"""Where a module is that no task means as the project to work on."""


@dataclass(frozen=True, slots=True)
class Imported:
    """Names of modules."""

    by_graders: frozenset[str] = frozenset()
    """What pytest looks for."""
    by_tests: frozenset[str] = frozenset()
    """Installed modules that the tests import, and what these look for."""
    missing: frozenset[str] = frozenset()
    """What pytest looks for and is nowhere: of these, a folder without `__init__` is imported."""

    def __or__(self, other: Imported) -> Imported:
        return Imported(
            self.by_graders | other.by_graders,
            self.by_tests | other.by_tests,
            self.missing | other.missing,
        )


async def measured(
    context: SlotContext, python: str, asked: Collection[str], agents: Container[str] = ()
) -> Imported:
    """What one interpreter imports; nothing if it has no pytest and none of the modules `asked`.

    `agents`: paths that the agent has added or changed: what is installed there is its own.

    Raises:
        SandboxError: the sandbox failed.
    """
    answer = await _asked(context, python, _MEASURE, asked)
    if answer is None:
        return Imported()
    by_graders, installed, missing = answer
    own = {name: origin for name, origin in installed if origin not in agents}
    libraries = [name for name, origin in own.items() if _LIBRARY.fullmatch(origin)]
    looked_for = await _asked(context, python, _IMPORT_ALL, libraries) if libraries else None
    by_tests = frozenset(own).union(looked_for or ())
    return Imported(frozenset(by_graders), by_tests, frozenset(missing))


async def _asked(context: SlotContext, python: str, script: str, names: Collection[str]) -> Any:
    """The last answer of a script about modules, also of one that did not end; else None."""
    words = [python, "-I", "-c", script, json.dumps(sorted(names))]
    result = await context.run(
        shlex.join(words), cwd="/", user=ROOT, timeout_s=120.0, max_output_bytes=MAX_NAMES_BYTES
    )
    lines = result.stdout.decode(errors="replace").splitlines()
    answers = [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]
    return json.loads(answers[-1]) if answers else None


def imports_of(text: str) -> Iterator[str]:
    """Yield the top-level modules that Python seems to import, in a file or within a script."""
    for first, others in _IMPORT.findall(text):
        yield from (re.split(r"[\s.]", each.strip())[0] for each in (first or others).split(","))
