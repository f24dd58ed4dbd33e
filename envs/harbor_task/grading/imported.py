"""What Python imports for the tests, measured in a box where no agent's file can be found.

pytest is run once on an empty test, by the interpreter and with the packages and plugins that
will grade, and each module that it looks for is noted, also one that is not there: an agent could
provide it. Of the modules that the tests themselves import, those are noted that are installed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass

from hermes_queue.sandbox.archives import ROOT
from hermes_queue.sandbox.context import SlotContext

MAX_NAMES_BYTES = 1 << 20
_IMPORT = re.compile(r"(?m)^[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+([\w., \t]+))")
_MARK = "IMPORTED "
_MEASURE = """\
import importlib.util, io, json, os, shutil, sys, tempfile
asked = json.loads(sys.argv[1])
installed = []
for name in asked:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.has_location:
            installed.append([name, spec.origin])
    except Exception:
        pass
seen = set()
class Noting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        seen.add(name.partition(".")[0])
sys.meta_path.insert(0, Noting)
out, folder = os.dup(1), tempfile.mkdtemp()
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
try:
    with open(os.path.join(folder, "test_nothing.py"), "w") as file:
        file.write("def test_a():\\n    assert [1] == [2]\\ndef test_b():\\n    pass\\n")
    import pytest
    pytest.main(["-rA", "--color=yes", "-p", "no:cacheprovider", "--rootdir", folder, folder])
except BaseException:
    pass
shutil.rmtree(folder, ignore_errors=True)
answer = json.dumps([sorted(seen - {"test_nothing"}), installed])
os.write(out, ("\\nIMPORTED " + answer + "\\n").encode())
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """Names of modules."""

    by_graders: frozenset[str] = frozenset()
    """What pytest looks for."""
    by_tests: frozenset[str] = frozenset()
    """Installed modules that the tests import."""

    def __or__(self, other: Imported) -> Imported:
        return Imported(self.by_graders | other.by_graders, self.by_tests | other.by_tests)


async def measured(
    context: SlotContext, python: str, asked: Collection[str], agents: Container[str] = ()
) -> Imported:
    """What one interpreter imports; nothing if it has no pytest and none of the modules `asked`.

    `agents`: paths that the agent has added or changed: what is installed there is its own.

    Raises:
        SandboxError: the sandbox failed.
    """
    words = [python, "-I", "-c", _MEASURE, json.dumps(sorted(asked))]
    result = await context.run(
        shlex.join(words), cwd="/", user=ROOT, timeout_s=120.0, max_output_bytes=MAX_NAMES_BYTES
    )
    for line in result.stdout.decode(errors="replace").splitlines():
        if line.startswith(_MARK):
            by_graders, by_tests = json.loads(line.removeprefix(_MARK))
            own = frozenset(name for name, origin in by_tests if origin not in agents)
            return Imported(frozenset(by_graders), own)
    return Imported()


def imports_of(text: str) -> Iterator[str]:
    """Yield the top-level modules that a Python file seems to import."""
    for first, others in _IMPORT.findall(text):
        yield from (re.split(r"[\s.]", each.strip())[0] for each in (first or others).split(","))
