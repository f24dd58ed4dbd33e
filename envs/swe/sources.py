"""The trusted repositories: pinned sdists and git remotes.

Both are below the cache directory, one per sdist or remote. They are made under a file lock and
moved into place complete, so that all workers of a host can share them.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import shlex
import shutil
import tarfile
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envs.base import ReadAsset
from envs.swe.item import SdistSource
from envs.swe.repository import GitError, Repository, locked, run_git
from hermes_queue.errors import EnvBug, EnvInfraError
from hermes_queue.sandbox.base import AssetSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import PathSettings, private_directory

ASSETS = "/opt/assets"
FETCH_TIMEOUT_S = 600.0
MAX_UNPACKED_BYTES = 512 << 20
_RECIPE = "1"
"""Part of every asset key; rises when an asset's script changes its result."""

NETWORK_TROUBLE = re.compile(
    r"Retrying \(|Could not fetch URL|Connection(Error|Refused| refused| reset)|"
    r"ProxyError|SSLError|[Tt]imed out|name resolution|HTTP error 5\d\d|5\d\d Server Error"
)
"""pip's messages when the index cannot be reached; a missing release then means nothing."""


def asset_key(*parts: str) -> str:
    """The digest that identifies an asset's content."""
    return hashlib.sha256("\0".join((_RECIPE, *parts)).encode()).hexdigest()


DOWNLOAD_UNBUILT = """
import email, os, sys, tempfile
from pip._internal.cli.main import main
from pip._internal.distributions.sdist import SourceDistribution

def read_metadata(self, *_, **__):
    with open(os.path.join(self.req.unpacked_source_directory, "PKG-INFO"), "rb") as file:
        stated = file.read()
    fields = email.message_from_bytes(stated)
    name = fields["Name"].replace("-", "_") + "-" + fields["Version"] + ".dist-info"
    place = os.path.join(tempfile.mkdtemp(), name)
    os.mkdir(place)
    with open(os.path.join(place, "METADATA"), "wb") as file:
        file.write(stated)
    self.req.metadata_directory = place

SourceDistribution.prepare_distribution_metadata = read_metadata
sys.exit(main(sys.argv[1:]))
"""
"""pip, which takes an sdist's name and version from the PKG-INFO that every sdist has.

By itself, `pip download` installs the sdist's build backend and runs it to learn them, which takes
four times as long, although the row's digest pins the file. There is no option against it, and this
is not an interface of pip's: where it fails, pip does it in its own way.
"""


def sdist_asset(source: SdistSource, python: str | None) -> AssetSpec:
    """The downloaded sdist. Only the worker reads it, since it holds the clean package.

    pip may run the build backend of the sdist to read its metadata, hence the sandbox.
    """
    line = f"{source.name}=={source.version} --hash=sha256:{source.sha256}"
    arguments = (
        f"download --quiet --no-deps --no-binary {shlex.quote(source.name)} "
        "--require-hashes -r requirements.txt -d ."
    )
    # Without its words for "run the module pip", the command is Python with pip within reach.
    script = (
        f"printf '%s\\n' {shlex.quote(line)} > requirements.txt\n"
        f"${{HQ_PIP% -m pip}} -c {shlex.quote(DOWNLOAD_UNBUILT)} {arguments} "
        f"|| $HQ_PIP {arguments}\n"
    )
    key = asset_key(source.name, source.version, source.sha256)
    mount = f"{ASSETS}/sdist-{key[:16]}"
    return AssetSpec(kind="sdist", key=key, script=script, mount=mount, python=python)


def asset_reader(context: SlotContext) -> ReadAsset:
    """A reader of assets that the env's slot must not see."""

    async def read(asset: AssetSpec, path: str) -> bytes:
        await context.prepare_asset(asset)
        return await context.read_asset(asset, path)

    return read


async def sdist_repository(
    source: SdistSource, python: str | None, read_asset: ReadAsset
) -> tuple[Repository, str]:
    """The repository made from an sdist, and its one commit: the package as published.

    Raises:
        EnvBug: the pin is wrong (no such name, version or filename, other sha256).
        EnvInfraError: the download failed.
    """
    home = private_directory(PathSettings().cache / "repos" / "sdist")
    pin = asset_key(source.name, source.version, source.filename, source.sha256)
    path = home / f"{source.name}-{source.version}-{pin[:16]}.git"
    if not path.exists():
        async with locked(path.with_suffix(".lock")):
            # Again: another process may have made it while this one waited. Renaming a second copy
            # over a repository that trajectories read from would fail, or break their reads.
            if not path.exists():
                data = await _download(source, python, read_asset)
                await _make(source, data, path)
    repository = Repository(path)
    return repository, await repository.resolve("refs/heads/main")


async def _download(source: SdistSource, python: str | None, read_asset: ReadAsset) -> bytes:
    pin = f"{source.name}=={source.version}"
    try:
        data = await read_asset(sdist_asset(source, python), source.filename)
    except EnvInfraError as error:
        raise _wrong_pin(source, str(error)) or error from error
    except FileNotFoundError as error:
        raise EnvBug(
            f"source.filename: the index has no {source.filename!r} for {pin}; "
            "give the name of the sdist as the index lists it"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != source.sha256:
        raise EnvBug(
            f"source.sha256: {source.filename} has {digest}, the row has {source.sha256}; "
            "correct the row if you trust the file"
        )
    return data


def _wrong_pin(source: SdistSource, output: str) -> EnvBug | None:
    """The error in the row that pip's output shows; None if the row is not at fault."""
    if "DO NOT MATCH THE HASHES" in output:
        return EnvBug(
            f"source.sha256: the index's {source.name}=={source.version} is not "
            f"{source.sha256}; correct the row if you trust the index"
        )
    missing = "No matching distribution found" in output
    if not missing or NETWORK_TROUBLE.search(output):
        return None
    field = "source.name" if re.search(r"from versions: none", output) else "source.version"
    return EnvBug(
        f"{field}: the package index has no sdist of {source.name}=={source.version}; "
        "check the name and version against the index"
    )


async def _make(source: SdistSource, data: bytes, path: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="new-", dir=path.parent))
    try:
        try:
            tree = await asyncio.to_thread(_unpack, data, scratch / "tree")
        except (tarfile.TarError, OSError, EOFError) as error:
            raise EnvBug(
                f"source.filename: {source.filename} cannot be unpacked: {error}"
            ) from error
        repository = await Repository.create(scratch / "repo.git")
        over = {"GIT_DIR": str(repository.path), "GIT_WORK_TREE": str(tree)}
        await run_git("-C", str(tree), "add", "-A", "-f", ".", env=over)
        written = (await repository.git("write-tree")).decode().strip()
        message = f"{source.name} {source.version}\n\nsdist sha256 {source.sha256}"
        commit = await repository.commit(written, message)
        await repository.git("update-ref", "refs/heads/main", commit)
        repository.path.rename(path)
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


def _unpack(data: bytes, target: Path) -> Path:
    """Extract a .tar.gz with one folder at its top; returns that folder."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        if sum(member.size for member in tar.getmembers()) > MAX_UNPACKED_BYTES:
            raise tarfile.TarError(f"more than {MAX_UNPACKED_BYTES} bytes unpacked")
        tar.extractall(target, filter="data")
    tops = list(target.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise tarfile.TarError(f"{len(tops)} entries at the top instead of one folder")
    return tops[0]


@dataclass(frozen=True, slots=True)
class GitPin:
    """A commit of a git remote, or the branch `instance_id`, by the names of a row's fields."""

    clone_url: str
    instance_id: str
    base_commit: str | None


async def git_repository(pin: GitPin) -> tuple[Repository, str]:
    """The cached remote of a pin, and the pin's commit there.

    Only what is needed is fetched, once; a branch that moves later is not followed.

    Raises:
        EnvBug: the remote has no such commit or branch.
        EnvInfraError: the remote cannot be fetched from.
    """
    path = _cache_of(pin)
    revision = pin.base_commit or pin.instance_id
    kept = f"refs/hq/{hashlib.sha256(revision.encode()).hexdigest()[:24]}"
    async with locked(path.with_suffix(".lock")):
        repository = Repository(path) if path.exists() else await Repository.create(path)
        commit = await _kept(repository, pin, kept)
        if commit is None:
            await _fetch(repository, pin, kept, pin.base_commit)
            commit = await repository.resolve(f"{kept}^{{commit}}")
        return repository, commit


async def _kept(repository: Repository, pin: GitPin, kept: str) -> str | None:
    """The commit from an earlier fetch of this pin or another; None if there is none."""
    with suppress(GitError):
        return await repository.resolve(f"{kept}^{{commit}}")
    if pin.base_commit is not None:
        with suppress(GitError):
            await repository.git("cat-file", "-e", f"{pin.base_commit}^{{tree}}")
            await repository.git("update-ref", kept, pin.base_commit)
            return pin.base_commit
    return None


async def parent_of(repository: Repository, commit: str, pin: GitPin) -> str | None:
    """The first parent of a commit, fetched if necessary; None if it has none.

    The commit object decides, not git's view of history: a shallow fetch ends history at commits
    whose parents may have been fetched long before.

    Raises:
        EnvBug: the remote does not serve the parent.
        EnvInfraError: the remote cannot be fetched from.
    """
    head, _, _ = (await repository.git("cat-file", "commit", commit)).partition(b"\n\n")
    named = [line.split()[1] for line in head.splitlines() if line.startswith(b"parent ")]
    if not named:
        return None
    parent = named[0].decode()
    async with locked(_cache_of(pin).with_suffix(".lock")):
        try:
            await repository.git("cat-file", "-e", f"{parent}^{{tree}}")
        except GitError:
            await _fetch(repository, pin, f"refs/hq/{parent}", parent)
    return parent


def _cache_of(pin: GitPin) -> Path:
    home = private_directory(PathSettings().cache / "repos" / "git")
    return home / f"{hashlib.sha256(pin.clone_url.encode()).hexdigest()[:24]}.git"


async def _fetch(repository: Repository, pin: GitPin, kept: str, commit: str | None) -> None:
    """Fetch `commit`, or the pin's branch if that is None, as the reference `kept`."""

    async def fetch(refspec: str, *options: str) -> None:
        quiet = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance")
        words = ("fetch", *quiet, *options, "--", pin.clone_url, refspec)
        await repository.git(*words, timeout_s=FETCH_TIMEOUT_S)

    branch = f"refs/heads/{pin.instance_id}"
    try:
        if commit is None:
            await run_git("check-ref-format", branch)
    except GitError as error:
        raise EnvBug(
            f"instance_id: {pin.instance_id!r} cannot name a branch; give the row a base_commit"
        ) from error
    try:
        try:
            # Depth 2: the parent of a branch's tip is graded.
            await fetch(f"+{commit or branch}:{kept}", "--depth=2")
        except GitError as error:
            if commit is None or "not our ref" not in str(error):
                raise
            # The server does not serve single commits.
            await fetch("+refs/heads/*:refs/hq/heads/*")
            await repository.git("update-ref", kept, commit)
    except GitError as error:
        raise _cannot_fetch(pin, str(error), commit) from error


def _cannot_fetch(pin: GitPin, message: str, commit: str | None) -> EnvBug | EnvInfraError:
    if "couldn't find remote ref" in message:
        return EnvBug(
            f"instance_id: {pin.clone_url} has no branch {pin.instance_id!r}; "
            "correct repo or repo_base_url, or give the row a base_commit"
        )
    if "not a valid SHA1" in message or "nonexistent object" in message:
        field = "base_commit" if pin.base_commit else "instance_id"
        return EnvBug(f"{field}: {pin.clone_url} has no commit {commit}")
    return EnvInfraError(
        f"repo_base_url: cannot fetch from {pin.clone_url}: {message}; "
        "check repo and repo_base_url, and that the worker may reach it"
    )
