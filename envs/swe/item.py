"""One dataset row: SWE-smith's names, SWE-bench's, and rows of our own.

Where the repository comes from (`source`):

- `{"type": "sdist", "name", "version", "filename", "sha256"}`: a PyPI sdist. The bug is
  `mutation` (see `envs.swe.recipe`) or `patch` on the sdist's tree.
- `{"type": "git", "repo_base_url"?}`, also when `source` is missing: the repository
  `<repo_base_url>/<repo>.git`, at `base_commit` if the row has one, else at branch
  `<instance_id>` (SWE-smith mirrors: the tip lacks the failing tests, its parent is graded).

`patch` may be the bug (SWE-smith) or the fix (SWE-bench): what applies decides.
Unknown columns are kept and ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from envs.swe.paths import file_of, relative
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
"""What a row without `environment` gets: pytest and what it needs."""

DEFAULT_TEST_TIMEOUT_S = 300.0
MIN_TEST_TIMEOUT_S = 60.0


def _decoded(value: object) -> object:
    """SWE-bench stores lists of test ids as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError("is neither a list of test ids nor a JSON list of them") from error


def _test_id(value: str) -> str:
    path = relative(file_of(value))
    if path.startswith("-") or any(ord(character) < 32 for character in path):
        raise ValueError(f"{value!r} does not begin with the path of a test file")
    return value


def _requirement(line: str) -> str:
    if not re.match(r"^[A-Za-z0-9][^\n\r\0]*$", line) or "${" in line:
        raise ValueError(
            f"{line!r} is not a requirement such as name==1.2; options and variables are not "
            "allowed here"
        )
    # What comes from an index has neither in its name, extras and version.
    direct = re.search(r"[@/]", re.split(r";|\s--", line)[0])
    if direct and not SandboxSettings().direct_urls:
        raise ValueError(
            f"{line!r} names a URL or a path, whose code would run while the environment is "
            "built: name a version from the package index, or, if you trust where all your rows "
            "come from, set HERMES_QUEUE_SANDBOX_DIRECT_URLS=true for producers and workers"
        )
    return line


TestId = Annotated[str, AfterValidator(_test_id)]
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
    """A repository that git can fetch from."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Literal["git"] = "git"
    repo_base_url: str | None = Field(default=None, pattern=r"^[^-\s][^\s]*$")
    """URL or absolute directory; wins over the item's own."""


class Runtime(BaseModel):
    """The interpreter, dependencies and pytest settings a row is tested with."""

    model_config = ConfigDict(frozen=True, extra="allow")

    python: str | None = Field(default=None, pattern=r"^3\.\d+(\.\d+)?$")
    """None = the worker's own."""
    requirements: tuple[Requirement, ...] = DEFAULT_REQUIREMENTS
    """A complete freeze (`name==version`, with `--hash=sha256:...` or without): installed
    as it is. It must not contain the package under test, whose clean copy it would be."""
    install: tuple[Requirement, ...] = ()
    """Further requirements whose dependencies pip resolves on the day; not reproducible."""
    pythonpath: tuple[str, ...] = ("src", ".")
    """Import roots inside the repository, which is never installed."""
    pytest_args: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    """What `pytest` is called with to run the whole suite; empty = pytest's own choice."""
    env: dict[str, str] = {}

    @model_validator(mode="after")
    def _inside(self) -> Runtime:
        for path in self.pythonpath:
            if path != ".":
                relative(path)
        return self


class Item(BaseModel):
    """A validated row."""

    model_config = ConfigDict(frozen=True, extra="allow")

    instance_id: str = Field(min_length=1, max_length=1024)
    repo: str = Field(default="", pattern=r"^([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?$")
    problem_statement: str = Field(min_length=1)
    FAIL_TO_PASS: Annotated[tuple[TestId, ...], BeforeValidator(_decoded)] = Field(min_length=1)
    PASS_TO_PASS: Annotated[tuple[TestId, ...], BeforeValidator(_decoded)] = ()
    patch: str | None = None
    mutation: Mutation | None = None
    test_patch: str = ""
    """Applied for grading only."""
    base_commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """git: where the work starts. sdist: the id the bug's commit must come out with."""
    clean_commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """sdist: the id the clean commit must come out with."""
    source: Annotated[SdistSource | GitSource, Field(discriminator="type")] = GitSource()
    repo_base_url: str = Field(default=DEFAULT_REPO_BASE_URL, pattern=r"^[^-\s][^\s]*$")
    environment: Runtime = Runtime()
    test_secs: float | None = Field(default=None, gt=0)
    """How long the graded tests took when the row was made."""

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_absent(cls, row: object) -> object:
        """Columns of a table exist in every row; null means that this one lacks the value."""
        if not isinstance(row, Mapping):
            return row
        known = {key: value for key, value in row.items() if value is not None}
        for key in ("base_commit", "clean_commit", "patch"):
            if known.get(key) == "":
                del known[key]
        source = known.get("source")
        if isinstance(source, Mapping) and "type" not in source:
            known["source"] = {"type": "git", **source}
        return known

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

    @property
    def clone_url(self) -> str:
        """What git fetches from; only for git sources."""
        base = (
            self.source.repo_base_url if isinstance(self.source, GitSource) else None
        ) or self.repo_base_url
        return f"{base.rstrip('/')}/{self.repo}.git"

    @property
    def hidden_files(self) -> tuple[str, ...]:
        """The files that hold FAIL_TO_PASS tests: the agent does not get them."""
        return tuple(sorted({file_of(test) for test in self.FAIL_TO_PASS}))

    @property
    def test_files(self) -> tuple[str, ...]:
        """The files that hold any test that grades."""
        return tuple(sorted({file_of(test) for test in self.FAIL_TO_PASS + self.PASS_TO_PASS}))

    @property
    def edited_files(self) -> tuple[str, ...]:
        """The files the bug is in."""
        if self.mutation is not None:
            return tuple(part.file for part in self.mutation.files)
        named = re.findall(r"^(?:\+\+\+|---) [ab]/([^\t\n]+)", self.patch or "", re.MULTILINE)
        return tuple(dict.fromkeys(named))

    @property
    def import_names(self) -> tuple[str, ...]:
        """Top-level packages and modules that the bug is in."""
        names = []
        for file in self.edited_files:
            for root in self.environment.pythonpath:
                inside = PurePosixPath(file)
                if root == "." or inside.is_relative_to(root):
                    top = inside.relative_to(root).parts[0]
                    names.append(top.removesuffix(".py"))
        return tuple(dict.fromkeys(names))

    @property
    def test_timeout_s(self) -> float:
        """How long grading may run: ten times what it took, at least a minute."""
        if self.test_secs is None:
            return DEFAULT_TEST_TIMEOUT_S
        return max(MIN_TEST_TIMEOUT_S, 10 * self.test_secs)


def skip_reason(row: Mapping[str, Any]) -> str | None:
    """Why a well-formed row is no task, or None. Producers count such rows and go on.

    Rows that are malformed answer None here and fail `Item`'s validation instead.
    """
    if "instance_id" not in row:
        return None
    if not str(row.get("problem_statement") or "").strip():
        return "problem_statement is empty"
    if row.get("FAIL_TO_PASS") in (None, "", "[]", [], ()):
        return "FAIL_TO_PASS names no test"
    return None
