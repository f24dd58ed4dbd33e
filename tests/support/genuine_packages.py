"""Three small packages that only work where their own metadata can be found.

Laid out in git as SWE-smith's mirrors are; the bug is always the same, in another place.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sample_package import make_row, mirror

GOOD, BAD = "    return sorted(values)\n", "    return list(values)\n"
CORE = f'"""Order things."""\n\n\ndef ordered(values):\n    """In order."""\n{GOOD}'
TEST_BUG = (
    "from {name}.core import ordered\n\n\n"
    "def test_ordered():\n    assert ordered([2, 1]) == [1, 2]\n"
)


@dataclass(frozen=True)
class Package:
    """One package: what it holds beside the core that all have."""

    name: str
    files: dict[str, str]
    passing: tuple[str, ...]

    def row(self, base: Path) -> dict[str, Any]:
        """Make the mirror below `base`; a row for it."""
        core, test = f"src/{self.name}/core.py", "tests/test_order.py"
        repo, branch = f"owner/owner__{self.name}.0123abcd", f"{self.name}__1"
        files = {**self.files, core: CORE, test: TEST_BUG.format(name=self.name)}
        buggy = CORE.replace(GOOD, BAD)
        mirror(base, repo, branch, (files, {core: buggy}), test)
        lines = difflib.unified_diff(
            CORE.splitlines(True), buggy.splitlines(True), f"a/{core}", f"b/{core}"
        )
        return make_row(
            instance_id=branch,
            repo=repo,
            repo_base_url=str(base),
            problem_statement="`ordered([2, 1])` gives [2, 1].",
            FAIL_TO_PASS=[f"{test}::test_ordered"],
            PASS_TO_PASS=list(self.passing),
            patch="".join(lines),
            environment=None,
        )


READS_ITS_VERSION = Package(
    "reads_its_version",
    {
        "pyproject.toml": '[project]\nname = "reads-its.version"\ndynamic = ["version"]\n'
        '[project.optional-dependencies]\ntests = ["reads-its-version[more]", "pytest<8"]\n'
        'more = ["attrs"]\n'
        '[tool.setuptools.dynamic]\nversion = {file = "VERSION"}\n',
        "VERSION": "8.6.0\n",
        "src/reads_its_version/__init__.py": "import importlib.metadata\n\n"
        '__version__ = importlib.metadata.version("reads-its.version")\n',
        "tests/test_version.py": "import reads_its_version\n\n\n"
        'def test_version():\n    assert reads_its_version.__version__ == "8.6.0"\n',
    },
    ("tests/test_version.py::test_version",),
)
HAS_A_PYTEST_PLUGIN = Package(
    "has_a_plugin",
    {
        "setup.cfg": "[metadata]\nname = has-a-plugin\nversion = attr: has_a_plugin.VERSION\n"
        "[options.entry_points]\npytest11 =\n    answers = has_a_plugin.plugin\n"
        "answers.sources =\n    deep = has_a_plugin.sources:Deep\n",
        "src/has_a_plugin/__init__.py": "VERSION = (0, 3)\n",
        "src/has_a_plugin/plugin.py": "import pytest\n\n\n"
        "@pytest.fixture\ndef answer():\n    return 42\n",
        "src/has_a_plugin/sources.py": "class Deep:\n    thought = True\n",
        "tests/test_plugin.py": "from importlib.metadata import entry_points\n\n\n"
        "def test_fixture(answer):\n    assert answer == 42\n\n\n"
        "def test_sources():\n"
        '    [found] = entry_points(group="answers.sources")\n'
        "    assert found.load().thought\n",
    },
    ("tests/test_plugin.py::test_fixture", "tests/test_plugin.py::test_sources"),
)
CONFTEST_IMPORTS_IT = Package(
    "in_conftest",
    {
        "setup.py": 'from setuptools import setup\n\nVERSION = "1.1"\n'
        'setup(name="in_conftest", version=VERSION, package_dir={"": "src"})\n',
        "src/in_conftest/__init__.py": "",
        "tests/conftest.py": "import importlib.metadata\n\nimport pytest\n\n"
        "from in_conftest.core import ordered\n\n"
        'REPORTED = importlib.metadata.version("in-conftest")\n\n\n'
        "@pytest.fixture\ndef own():\n    return ordered, REPORTED\n",
        "tests/test_own.py": "def test_own(own):\n"
        '    assert own[0](()) == [] and own[1] == "1.1"\n',
    },
    ("tests/test_own.py::test_own",),
)
PACKAGES = (READS_ITS_VERSION, HAS_A_PYTEST_PLUGIN, CONFTEST_IMPORTS_IT)
