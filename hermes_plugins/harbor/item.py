"""The row of a Harbor task: where its folder is, and how it is graded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from hermes_plugins.harbor.task import GradingMode, TaskFolder

_GIT_URL = re.compile(r"(?:https?|ssh|git|file)://[^\s]+|[\w.-]+@[\w.-]+:[^\s]+|/[^\s]+")
_HEX = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def _is_relative(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path or path.startswith("-"):
        raise ValueError("must be a path inside the repository, without '..'")
    return path.strip("/")


class GitTask(BaseModel):
    """A folder at a commit of a git repository."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    git_url: str
    commit: str
    path: Annotated[str, AfterValidator(_is_relative)] = ""

    @field_validator("git_url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        if not _GIT_URL.fullmatch(url):
            raise ValueError("must be a URL that git fetches from (https, ssh, git, file)")
        return url

    @field_validator("commit")
    @classmethod
    def _is_an_id(cls, commit: str) -> str:
        if not _HEX.fullmatch(commit):
            raise ValueError("must be the full id of a commit: branches and tags move")
        return commit


class ArchivedTask(BaseModel):
    """The folder itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    archive: str = Field(min_length=1)
    """A tar.gz in base64, with `task.toml` at its top or in its only folder."""


class HarborItem(BaseModel):
    """One task in the Harbor format."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    instance_id: str = Field(min_length=1)
    task: str | GitTask | ArchivedTask
    """A text is the absolute path of the folder on the worker's host."""
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """`tree.digest` of the folder. A folder with another one is refused; "" takes any."""
    evaluation: bool = False
    """Whether nothing may be trained on it: sinks refuse its trajectories."""
    grading: GradingMode | None = None
    """The mode in which the task was validated. None: the strictest that applies."""
    time_limit_s: float | None = Field(default=None, gt=0)
    """The agent's limit, as the prompt says it."""

    _folder: TaskFolder | None = PrivateAttr(default=None)
    _steps: tuple[TaskFolder, ...] = PrivateAttr(default=())

    @field_validator("task")
    @classmethod
    def _is_absolute(cls, task: Any) -> Any:
        if isinstance(task, str) and (not task.startswith("/") or "\0" in task):
            raise ValueError("must be an absolute path: workers run in another directory")
        return task

    @property
    def folder(self) -> TaskFolder:
        """The task's folder on this host.

        Raises:
            RuntimeError: `loaded` was not called.
        """
        if self._folder is None:
            raise RuntimeError(f"{self.instance_id}: the task's folder has not been loaded")
        return self._folder

    def loaded(
        self, folder: TaskFolder, steps: Sequence[TaskFolder] = (), *, evaluation: bool = False
    ) -> HarborItem:
        """This item with its folder, those of its steps, and what it says about training on it.

        `steps`: none if the task has no steps.
        """
        item = self.model_copy(update={"evaluation": self.evaluation or evaluation})
        item._folder, item._steps = folder, tuple(steps)
        return item

    @property
    def steps(self) -> tuple[TaskFolder, ...]:
        """The folders of all steps of the task; none if it has no steps."""
        return self._steps
