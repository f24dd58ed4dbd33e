"""One dataset row: with SWE-smith's columns, SWE-bench's, or our own.

Origin of the repository (`source`):

- `{"type": "sdist", "name", "version", "filename", "sha256"}`: a PyPI sdist. The bug is
  `mutation` (see `envs.swe.recipe`) or `patch` on the sdist's tree.
- `{"type": "git", "repo_base_url"?}`, also if `source` is missing: the repository
  `<repo_base_url>/<repo>.git`, at `base_commit` if the row has one, else at branch
  `<instance_id>` (SWE-smith mirrors: the tip lacks the failing tests, its parent is graded).
- `{"type": "image", "reference", ...}`: an image with the repository and all it needs. Rows of
  public datasets that name one get it from `envs.swe.images.rows`.

`patch` may be the bug (SWE-smith) or the fix (SWE-bench), depending on which way it applies; to an
image's files it applies forwards, and `source.patch` says what it is.
Unknown columns are kept and ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from envs.swe.evaluations import is_evaluation
from envs.swe.images.rows import with_image
from envs.swe.images.runners import is_id, is_node_id
from envs.swe.images.source import ImageSource, Runner
from envs.swe.package.project import EntryPoints, clean_entry_points, normalize
from envs.swe.paths import check_node_id, file_of, relative
from envs.swe.recipe import Mutation, Sha256
from hermes_queue.settings import SandboxSettings

DEFAULT_REPO_BASE_URL = "https://github.com"
DEFAULT_REQUIREMENTS = (
    "iniconfig==2.1.0",
    "packaging==25.0",
    "pluggy==1.6.0",
    "pygments==2.19.2",
    "pytest==8.4.2",
)
"""Requirements of a row without `environment`: pytest and its dependencies."""

PYTEST_OWN = frozenset(
    "colorama exceptiongroup iniconfig packaging pluggy pygments pytest tomli".split()
)
"""pytest and its dependencies on every platform and Python; all environments contain them."""

DEFAULT_TEST_TIMEOUT_S = 300.0
MIN_TEST_TIMEOUT_S = 60.0


def _json(text: str, expected: str) -> object:
    """The value of a flat table's column that holds JSON text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is neither {expected} nor JSON text of one") from error


def _decoded(value: object) -> object:
    """SWE-bench stores lists of test ids as JSON text."""
    return _json(value, "a list of test ids") if isinstance(value, str) else value


def _present(value: object) -> object:
    """A mapping without its nulls: a table has every column in every row."""
    if not isinstance(value, Mapping):
        return value
    return {key: _present(part) for key, part in value.items() if part is not None}


def _environment(value: object) -> object:
    if isinstance(value, str):
        value = _json(value, "an object with requirements, pythonpath, ...") if value else {}
    return _present(value)


_REQUIREMENT = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(?:$|[<>=!~;@(]|--hash)"
)


def _requirement(line: str) -> str:
    if re.search(r"[\n\r\0]", line) or "${" in line:
        raise ValueError(f"{line!r} is not a requirement: variables and line ends are not allowed")
    # A requirement from an index has neither character in its name, extras and version.
    direct = re.search(r"[@/]", re.split(r";|\s--", line)[0])
    if direct and not SandboxSettings().direct_urls:
        raise ValueError(
            f"{line!r} names a URL or a path, whose code would run while the environment is "
            "built: name a version from the package index, or, if you trust where all your rows "
            "come from, set HERMES_QUEUE_SANDBOX_DIRECT_URLS=true for producers and workers"
        )
    if not _REQUIREMENT.match(line):
        raise ValueError(
            f"{line!r} is not a requirement such as name==1.2 or name @ https://...; options, "
            "paths and bare URLs are not allowed here"
        )
    return line


def requirement_name(line: str) -> str:
    """Normalised name of the distribution in a requirement."""
    match = _REQUIREMENT.match(line)
    return normalize(match.group(1)) if match else ""


def _root(path: str) -> str:
    return path if path == "." else relative(path)


TestIds = Annotated[tuple[str, ...], BeforeValidator(_decoded)]
Requirement = Annotated[str, AfterValidator(_requirement)]


class SdistSource(BaseModel):
    """A PyPI sdist, pinned by hash."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Literal["sdist"]
    name: str = Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    version: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")
    filename: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*\.(tar\.gz|tgz)$")
    sha256: Sha256


class GitSource(BaseModel):
    """A repository from which git can fetch."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Literal["git"] = "git"
    repo_base_url: str | None = Field(default=None, pattern=r"^[^-\s][^\s]*$")
    """URL or absolute directory; takes precedence over the item's own."""


class DistributionFields(BaseModel):
    """Metadata of the package under test; missing fields are read from its repository."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]{0,99}$")
    entry_points: EntryPoints | None = None
    """Group -> name -> "module:attribute"."""

    @model_validator(mode="after")
    def _writable(self) -> DistributionFields:
        given = self.entry_points or {}
        if clean_entry_points(given) != {group: dict(points) for group, points in given.items()}:
            raise ValueError(
                'entry_points must have the form {"group": {"name": "module:attribute"}}'
            )
        return self


class SuiteRuntime(BaseModel):
    """Interpreter, dependencies and pytest settings for the tests of a row."""

    model_config = ConfigDict(frozen=True, extra="allow")

    python: str | None = Field(default=None, pattern=r"^3\.\d+(\.\d+)?$")
    """None = the worker's own."""
    requirements: tuple[Requirement, ...] = DEFAULT_REQUIREMENTS
    """A complete freeze (`name==version`, with or without `--hash=sha256:...`), installed
    unchanged. It must not contain the package under test, because that would be a clean copy."""
    install: tuple[Requirement, ...] = ()
    """Further requirements, whose dependencies pip resolves at build time; not reproducible."""
    pythonpath: tuple[Annotated[str, AfterValidator(_root)], ...] = ("src", ".")
    """Import roots inside the repository, which is never installed."""
    pytest_args: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    """Arguments with which pytest runs the whole suite; empty = pytest's default."""
    env: dict[str, str] = {}
    distribution: DistributionFields | None = None
    """Metadata of the package under test that its pinned files do not state."""
    flaky: TestIds = ()
    """Tests whose outcome changes while the files do not, by id; they decide nothing."""

    def requirement_of(self, name: str) -> tuple[str, str] | None:
        """(field, line) that would install the distribution `name`; None if none does.

        None also for pytest's own dependencies, which every environment contains.
        """
        normalized = normalize(name)
        if normalized in PYTEST_OWN:
            return None
        for field in ("requirements", "install"):
            for line in getattr(self, field):
                if requirement_name(line) == normalized:
                    return field, line
        return None


class Item(BaseModel):
    """A validated row."""

    model_config = ConfigDict(frozen=True, extra="allow")

    instance_id: str = Field(min_length=1, max_length=1024)
    repo: str = Field(default="", pattern=r"^([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?$")
    problem_statement: str = Field(min_length=1)
    FAIL_TO_PASS: TestIds = Field(min_length=1)
    PASS_TO_PASS: TestIds = ()
    patch: str | None = None
    mutation: Mutation | None = None
    test_patch: str = ""
    """Applied for grading only."""
    base_commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """git: the starting commit. sdist: the required id of the bug's commit."""
    clean_commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """sdist: the required id of the clean commit."""
    source: Annotated[SdistSource | GitSource | ImageSource, Field(discriminator="type")] = (
        GitSource()
    )
    repo_base_url: str = Field(default=DEFAULT_REPO_BASE_URL, pattern=r"^[^-\s][^\s]*$")
    environment: Annotated[SuiteRuntime, BeforeValidator(_environment)] = SuiteRuntime()
    """May be JSON text."""
    test_secs: float | None = Field(default=None, gt=0)
    """Duration of the graded tests when the row was made."""
    evaluation: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether nothing may be trained on it: sinks refuse its trajectories. Rows of known
    benchmarks are marked whatever they say; see `envs.swe.evaluations`."""
    full_report: bool = False
    """Whether all other tests also run for an attempt that fails FAIL_TO_PASS tests."""

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_absent(cls, row: object) -> object:
        """Drop nulls: in a table, null means that a row does not have the value."""
        if not isinstance(row, Mapping):
            return row
        known = {key: value for key, value in row.items() if value is not None}
        for key in ("base_commit", "clean_commit", "patch"):
            if known.get(key) == "":
                del known[key]
        if is_evaluation(known):
            known["evaluation"] = True
        source = known.get("source")
        if isinstance(source, Mapping) and "type" not in source:
            known["source"] = {"type": "git", **source}
        return with_image(known)

    @model_validator(mode="after")
    def _one_bug(self) -> Item:
        if not self.problem_statement.strip():
            raise ValueError("problem_statement is blank; describe what is wrong")
        if (self.patch is None) == (self.mutation is None):
            raise ValueError("exactly one of patch and mutation must be set")
        if isinstance(self.source, GitSource):
            if self.mutation is not None:
                raise ValueError("mutation needs a source of type sdist; git rows take patch")
            if not self.repo:
                raise ValueError("repo must be set for a git source, e.g. owner/name")
        return self

    @model_validator(mode="after")
    def _fits_its_image(self) -> Item:
        """Refuse what an image decides, and ids that are not of the program that runs the tests."""
        if not isinstance(self.source, ImageSource):
            self._check_node_ids()
            return self
        own = self.environment
        if self.mutation is not None:
            raise ValueError("mutation needs a source of type sdist; rows with an image take patch")
        if own.python or own.install or own.requirements != DEFAULT_REQUIREMENTS:
            raise ValueError(
                "environment.python, requirements and install are for rows without an image: this "
                "one has its interpreter and dependencies in source.reference"
            )
        if own.pytest_args and self.runner != "pytest":
            raise ValueError(f"environment.pytest_args: source.runner is {self.runner}")
        foreign = [test for test in self.test_ids if not is_id(test, self.runner)]
        if foreign:
            raise ValueError(
                f"FAIL_TO_PASS, PASS_TO_PASS: {foreign[0][:100]!r} is not the id of a test of "
                f"{self.runner}: source.runner must be the program whose tests they are, and "
                "rows of other programs than pytest, unittest, Django and SymPy cannot be graded"
            )
        self._check_node_ids()
        return self

    def _check_node_ids(self) -> None:
        for column in ("FAIL_TO_PASS", "PASS_TO_PASS"):
            for test in getattr(self, column):
                if self.runner == "pytest" or is_node_id(test):
                    check_node_id(test, column)

    @model_validator(mode="after")
    def _something_decides(self) -> Item:
        if {*self.FAIL_TO_PASS} <= {*self.environment.flaky}:
            raise ValueError(
                "environment.flaky has every FAIL_TO_PASS test, so that nothing shows whether the "
                "bug is repaired: leave the row out"
            )
        return self

    @model_validator(mode="after")
    def _not_installed(self) -> Item:
        name = self.package_name
        if name and (found := self.environment.requirement_of(name)):
            field, line = found
            raise ValueError(
                f"environment.{field} has {line!r}, the package under test, whose clean copy would "
                "be in the slot: remove it. The package is imported from its source tree, and "
                "its metadata is generated; if this is another package, put the name of the "
                "one under test into environment.distribution.name"
            )
        return self

    @property
    def package_name(self) -> str:
        """The distribution under test according to the row: as stated, or from its source.

        SWE-smith's `repo` is `owner/owner__name.commit`, others have `owner/name`.
        """
        own = self.environment.distribution
        if own is not None and own.name:
            return own.name
        if isinstance(self.source, SdistSource):
            return self.source.name
        name = self.repo.rpartition("/")[2].rpartition("__")[2]
        return re.sub(r"\.[0-9a-f]{7,40}$", "", name)

    @property
    def runner(self) -> Runner:
        """The program whose tests they are."""
        return self.source.runner if isinstance(self.source, ImageSource) else "pytest"

    @property
    def clone_url(self) -> str:
        """URL from which git fetches; only for git sources."""
        own = self.source.repo_base_url if isinstance(self.source, GitSource) else None
        return f"{(own or self.repo_base_url).rstrip('/')}/{self.repo}.git"

    def without(self, tests: Collection[str]) -> Item:
        """The row without these among the tests that grade."""
        kept = {
            column: tuple(test for test in getattr(self, column) if test not in tests)
            for column in ("FAIL_TO_PASS", "PASS_TO_PASS")
        }
        return self.model_copy(update=kept)

    @property
    def test_ids(self) -> tuple[str, ...]:
        """All tests that grade."""
        return self.FAIL_TO_PASS + self.PASS_TO_PASS

    @property
    def hidden_files(self) -> tuple[str, ...]:
        """Files with FAIL_TO_PASS tests, which the agent does not get."""
        return self._files_of(self.FAIL_TO_PASS)

    @property
    def test_files(self) -> tuple[str, ...]:
        """Files with any test that grades."""
        return self._files_of(self.test_ids)

    def _files_of(self, tests: Sequence[str]) -> tuple[str, ...]:
        """The files of these tests; those of the test patch stand for ids that name none."""
        if self.runner != "pytest":
            known = {file_of(test) for test in tests if is_node_id(test)}
            return tuple(sorted(known or self.patched_tests))
        return tuple(sorted(set(map(file_of, tests))))

    @property
    def patched_tests(self) -> tuple[str, ...]:
        """Python files that the test patch changes or adds."""
        named = re.findall(r"^\+\+\+ b/([^\t\n]+\.py)$", self.test_patch, re.MULTILINE)
        return tuple(dict.fromkeys(named))

    @property
    def edited_files(self) -> tuple[str, ...]:
        """Files that contain the bug."""
        if self.mutation is not None:
            return tuple(part.file for part in self.mutation.files)
        named = re.findall(r"^(?:\+\+\+|---) [ab]/([^\t\n]+)", self.patch or "", re.MULTILINE)
        return tuple(dict.fromkeys(named))

    @property
    def import_names(self) -> tuple[str, ...]:
        """Top-level packages and modules that contain the bug."""
        tops = [
            file.relative_to(root).parts[0].removesuffix(".py")
            for file in map(PurePosixPath, self.edited_files)
            for root in self.environment.pythonpath
            if file.is_relative_to(root)
        ]
        return tuple(dict.fromkeys(tops))

    @property
    def test_timeout_s(self) -> float:
        """Time limit of grading: ten times the recorded duration, at least a minute."""
        if self.test_secs is None:
            return DEFAULT_TEST_TIMEOUT_S
        return max(MIN_TEST_TIMEOUT_S, 10 * self.test_secs)


def skip_reason(row: Mapping[str, Any]) -> str | None:
    """The reason why a well-formed row is not a task; None for tasks and for malformed rows."""
    if "instance_id" not in row:
        return None
    if not str(row.get("problem_statement") or "").strip():
        return "problem_statement is empty"
    if row.get("FAIL_TO_PASS") in (None, "", "[]", [], ()):
        return "FAIL_TO_PASS names no test"
    return None
