"""The `source` of rows that bring an image: `{"type": "image", "reference", ...}`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Runner = Literal["pytest", "unittest", "django", "sympy"]

WORKDIR = "/testbed"
"""The repository's place in the images of all datasets that SWE-bench's harness can grade."""

PROGRAMS = (
    "{workdir}/.venv/bin",
    "/opt/miniconda3/envs/testbed/bin",
    "/opt/conda/envs/testbed/bin",
    "/root/.venv/bin",
)
"""Where such images keep the interpreter that has the dependencies, in the order of preference."""
SYSTEM_PROGRAMS = (
    "/opt/miniconda3/bin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)


def _workdir(path: str) -> str:
    parts = path.split("/")
    if not path.startswith("/") or len(parts) < 2 or not all(parts[1:]) or {".", ".."} & set(parts):
        raise ValueError(f"{path!r} is not an absolute path of a directory, such as {WORKDIR}")
    if ":" in path or not path.isprintable():
        raise ValueError(f"{path!r} cannot be part of PATH")
    if parts[1] in ("proc", "sys", "dev", "tmp"):
        raise ValueError(f"{path!r} is no place for a repository")
    return path


class ImageSource(BaseModel):
    """An image that holds the repository and all that its tests need."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Literal["image"]
    reference: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]*$", max_length=500)
    """Name of the image, with a digest where one is known."""
    workdir: Annotated[str, AfterValidator(_workdir)] = WORKDIR
    """The repository in it, as the image has it when the work begins."""
    patch: Literal["fix", "bug"] = "fix"
    """What the row's `patch` does to the image's files: repair them, or put the bug in."""
    python: str | None = Field(default=None, pattern=r"^/[^\x00\n:]*$")
    """Path of the interpreter that runs the tests; None = the first of the usual places that has
    pytest, if that runs them."""
    runner: Runner = "pytest"
    """The program whose tests they are."""
    tests: str | None = Field(default=None, pattern=r"^/[^\x00\n:]*$")
    """A directory of hidden tests beside the repository (R2E-Gym); graded as `r2e_tests` in it."""
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    disk_mb: int | None = Field(default=None, gt=0)

    @property
    def path(self) -> str:
        """PATH for commands: the image's environment first."""
        own = [place.format(workdir=self.workdir) for place in PROGRAMS]
        if self.python is not None:
            own.insert(0, self.python.rpartition("/")[0] or "/")
        return ":".join([*own, *SYSTEM_PROGRAMS])
