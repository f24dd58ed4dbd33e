"""Make the `environment` of a repository's rows: the requirements of its tests, frozen at a date.

The repository's commit is fetched, `dependencies.py` collects the requirements from its files,
pip resolves them in a sandbox, and the result becomes an entry of the file that `--environments`
takes. No code of the repository runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hermes_queue.disk.durable import replaced
from hermes_queue.errors import ConfigurationError, EnvBug, EnvInfraError, InputError
from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.base import AssetSpec, SlotSpec
from hermes_queue.settings import SandboxSettings
from hermes_queue.terminal.output import echo
from producers.command import run_command
from producers.environments import read_environments
from producers.run.flags import Options, flag, switch
from producers.swe_smith import absolute_base_url

if TYPE_CHECKING:
    from envs.swe.package.distribution import Reader
    from envs.swe.package.project import Project

TODAY = "now"
_EPILOG = """\
The package's own dependencies are read from PKG-INFO, pyproject.toml, setup.cfg or literals in
setup.py; --extra, --group and --requirements add the repository's lists for its tests.
pip (26.0 or newer) then resolves them with the releases that the index had on that date.

examples:
  a SWE-smith mirror, whose branch main is the package without a bug:
    python -m producers.make_environment --repo swesmith/marshmallow-code__webargs.dcc47d50 \\
        --repo-base-url /srv/mirrors --ref main --as-of 2025-03-16 --extra tests \\
        --out environments.json
  then check that rows are usable, and that the known fixes pass:
    python -m producers.swe_smith --dataset rows.jsonl --items all --repo-base-url /srv/mirrors \\
        --environments environments.json --check
    python -m producers.swe_smith --dataset rows.jsonl --items all --repo-base-url /srv/mirrors \\
        --environments environments.json --expect-score 1

exit codes: 0 written | 1 the repository or the index could not be reached | 2 wrong flag or list |
  3 this machine cannot isolate slots | 130 interrupted
"""


@dataclass(frozen=True)
class RepositoryOptions(Options):
    """The commit whose tests are to run."""

    title: ClassVar[str] = "the repository"
    repo: str = flag("`repo` of the rows", required=True, metavar="OWNER/NAME")
    repo_base_url: str | None = flag(
        "fetch <URL>/<repo>.git; may be a local directory (default: GitHub)", metavar="URL"
    )
    version: str | None = flag(
        "make the entry of rows with this `version` only: repo@VERSION", metavar="VERSION"
    )
    ref: str = flag(
        "branch (as it was when first fetched) or commit (40 hex digits)",
        required=True,
        metavar="REF",
    )


def _several(metavar: str, text: str) -> Any:
    return flag(f"{text}; may be repeated", default=(), metavar=metavar)


@dataclass(frozen=True)
class RequirementOptions(Options):
    """The requirements, and the releases that may meet them."""

    title: ClassVar[str] = "requirements of its tests"
    extra: tuple[str, ...] = _several("NAME", "optional dependencies of the package")
    group: tuple[str, ...] = _several("NAME", "dependency group of pyproject.toml")
    requirements: tuple[str, ...] = _several("PATH", "requirements file in the repository")
    requirement: tuple[str, ...] = _several(
        "REQUIREMENT", "additional requirement, e.g. 'pytest<8'"
    )
    as_of: str | None = flag(
        "use only releases from before this day, e.g. 2025-03-16 (default: the date of the "
        f"commit); {TODAY}: use all, also from indexes that publish no dates",
        metavar="DATE",
    )
    python: str | None = flag("Python to resolve for (default: the worker's)", metavar="X.Y")


@dataclass(frozen=True)
class EnvironmentOutput(Options):
    """The file that is written."""

    title: ClassVar[str] = "output"
    out: Path = flag(
        "JSON file: repo, or repo@version -> environment; its other entries are kept",
        required=True,
        type=Path,
        metavar="PATH",
    )
    quiet: bool = switch("do not show progress")

    def say(self, text: str) -> None:
        """Show progress on stderr."""
        if not self.quiet:
            echo(f"{text}", err=True)


def build_parser() -> argparse.ArgumentParser:
    """The parser of `python -m producers.make_environment`."""
    parser = argparse.ArgumentParser(
        prog="python -m producers.make_environment",
        description="Freeze the requirements of a git repository's tests, as of a date, for "
        "`python -m producers.swe_smith --environments FILE`. No code of the repository runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for group in (RepositoryOptions, RequirementOptions, EnvironmentOutput):
        group.add(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (see `hermes_queue.errors`).

    Raises:
        SystemExit: for `--help` and for flags that cannot be parsed (exit code 2).
    """
    parsed = build_parser().parse_args(argv)
    source, wanted = RepositoryOptions.of(parsed), RequirementOptions.of(parsed)
    output = EnvironmentOutput.of(parsed)
    return run_command(
        lambda: asyncio.run(_make(source, wanted, output)),
        interrupted="interrupted; nothing was written",
    )


async def _make(
    source: RepositoryOptions, wanted: RequirementOptions, output: EnvironmentOutput
) -> int:
    from envs.swe.item import PYTEST_OWN, requirement_name
    from envs.swe.package.project import normalize
    from producers.dependencies import gather

    table = dict(read_environments(output.out)) if output.out.exists() else {}
    as_of = None if wanted.as_of is None or wanted.as_of == TODAY else _date(wanted.as_of)
    reader, project, committed = await _fetch(source)
    if wanted.as_of is None:
        as_of = committed
    lists = {"extras": wanted.extra, "groups": wanted.group, "files": wanted.requirements}
    if not any(lists.values()):
        output.say(f"no list of the repository was chosen; it has {_lists(reader, project)}")
    found = await gather(project, reader.text, **lists)
    lines = [*found.lines, *wanted.requirement]
    if "pytest" not in map(requirement_name, lines):
        lines.append("pytest")
    for line in found.left_out:
        output.say(f"left out, because it is not a requirement of a package index: {line}")
    output.say(f"resolving {len(lines)} requirements as of {as_of or 'now'}")
    python = wanted.python or f"{sys.version_info.major}.{sys.version_info.minor}"
    frozen = await _resolve(lines, as_of, python)
    name = normalize(project.name)
    own = [line for line in frozen if requirement_name(line) == name and name not in PYTEST_OWN]
    if own:
        output.say(f"left out: {own[0]}, the package itself, a dependency of another requirement")
    kept = [line for line in frozen if line not in own]
    entry = source.repo if source.version is None else f"{source.repo}@{source.version}"
    _write(output.out, {**table, entry: {"python": python, "requirements": kept}})
    output.say(f"{entry}: {len(kept)} packages, written to {output.out}")
    return 0


def _date(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"--as-of: {text!r} is not a date such as 2025-03-16") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


async def _fetch(source: RepositoryOptions) -> tuple[Reader, Project, str]:
    """The pinned tree, its project metadata, and the time of the commit."""
    from envs.swe.item import DEFAULT_REPO_BASE_URL
    from envs.swe.package.distribution import open_tree, read_project
    from envs.swe.sources import GitPin, git_repository

    base = absolute_base_url(source.repo_base_url or DEFAULT_REPO_BASE_URL)
    for name, text in (("--repo", source.repo), ("--repo-base-url", base)):
        if text.startswith("-") or re.search(r"\s", text):
            raise InputError(f"{name}: {text!r} cannot be part of a clone URL")
    commit = source.ref if re.fullmatch(r"[0-9a-f]{40}", source.ref) else None
    pin = GitPin(f"{base.rstrip('/')}/{source.repo}.git", source.ref, commit)
    try:
        repository, commit = await git_repository(pin)
    except EnvBug as error:
        raise InputError(f"--ref {source.ref}: {str(error).partition(': ')[2]}") from error
    committed = await repository.git("show", "--no-patch", "--format=%cI", commit)
    reader = await open_tree(repository, f"{commit}^{{tree}}")
    return reader, await read_project(reader), committed.decode().strip()


def _lists(reader: Reader, project: Project) -> str:
    files = [path for path in reader.sizes if re.search(r"requirements[^/]*\.(txt|in)$", path)]
    kinds = (("--extra", project.extras), ("--group", project.groups), ("--requirements", files))
    named = [f"{flag} {', '.join(list(names)[:20])}" for flag, names in kinds if names]
    return "; ".join(named) or "none"


async def _resolve(lines: Sequence[str], as_of: str | None, python: str) -> list[str]:
    """`name==version` of everything that pip would install, sorted. Runs in a networked sandbox."""
    asset = _resolution(lines, as_of, python)
    backend = make_backend(SandboxSettings().backend, slots=1)
    await backend.start()
    try:
        await backend.prepare(SlotSpec(assets=(asset,), python=python))
        report = json.loads(await backend.read_asset(asset, "report.json"))
    except EnvInfraError as error:
        raise explain_refusal(str(error), as_of) or error from error
    finally:
        await backend.stop()
    chosen: list[dict[str, Any]] = [part["metadata"] for part in report["install"]]
    return sorted(f"{part['name'].lower()}=={part['version']}" for part in chosen)


def _resolution(lines: Sequence[str], as_of: str | None, python: str) -> AssetSpec:
    from envs.swe.sources import ASSETS, asset_key

    words = " ".join(map(shlex.quote, lines))
    options = "--quiet --dry-run --ignore-installed --prefer-binary --report report.json"
    script = f"printf '%s\\n' {words} > requirements.in\n"
    if as_of is None:
        script += f"# {datetime.now(UTC).isoformat()}: never cached\n"
    else:
        # Files in a directory have no upload time, so pip would take the newest.
        script += 'unset PIP_FIND_LINKS\ncase "${PIP_EXTRA_INDEX_URL-}" in\n'
        script += "  *file:*) unset PIP_EXTRA_INDEX_URL ;;\nesac\n"
        options += f" --uploaded-prior-to {shlex.quote(as_of)}"
    script += f"$HQ_PIP install {options} -r requirements.in\n"
    key = asset_key("resolution", python, script)
    return AssetSpec(
        kind="resolution", key=key, script=script, mount=f"{ASSETS}/resolution", python=python
    )


def explain_refusal(output: str, as_of: str | None) -> ConfigurationError | None:
    """The error for output of pip that blames the request; None if the request is not at fault."""
    if "no such option: --uploaded-prior-to" in output:
        return ConfigurationError(
            "--as-of: the pip of this Python is older than 26.0; "
            f"{sys.executable} -m pip install --upgrade pip"
        )
    if "upload-time" in output:
        return ConfigurationError(
            f"--as-of: the index publishes no upload times; use another index, or --as-of {TODAY}"
        )
    missing = re.search(r"No matching distribution found for ([^\n]+)", output)
    if missing:
        return InputError(
            f"the index had no {missing.group(1).strip()} as of {as_of or 'now'} for "
            "this Python; use a later --as-of, another --python, or other lists"
        )
    if "ResolutionImpossible" in output or "conflict" in output:
        return InputError(f"the requirements contradict each other: {output[-1500:]}")
    return None


def _write(path: Path, table: dict[str, Any]) -> None:
    text = json.dumps(table, indent=2, ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path, path.with_name(f"{path.name}.{os.getpid()}.new")) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out: {path} cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
