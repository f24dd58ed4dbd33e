"""Trusted repositories: git plumbing without a work tree."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

import pytest
from sample_package import CORE, bug_patch, fix_patch, make_mirror, make_row

from envs.swe import workspace
from envs.swe.item import Item
from envs.swe.repository import GitError, Repository, locked, run_git
from envs.swe.sources import GitPin, git_repository
from envs.swe.workspace import pin
from hermes_queue.errors import EnvBug
from hermes_queue.sandbox.base import AssetSpec

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@pytest.fixture
async def repository(tmp_path: Path) -> Repository:
    made = await Repository.create(tmp_path / "r.git")
    await made.git("hash-object", "-w", "-t", "tree", "/dev/null")
    return made


async def no_asset(asset: AssetSpec, path: str) -> bytes:
    raise AssertionError("a git row needs no asset")


async def test_replace_writes_keeps_and_removes(repository: Repository) -> None:
    one = await repository.replace(EMPTY_TREE, {"a b.py": b"1\n", "d/c": b"2\n"})
    two = await repository.replace(one, {"a b.py": b"3\n", "d/c": None, "new": b""})
    assert await repository.files(two) == {"a b.py", "new"}
    assert await repository.read(two, "a b.py") == b"3\n"


async def test_a_diff_applies_and_reverts(repository: Repository) -> None:
    old = await repository.replace(EMPTY_TREE, {"a": b"1\n", "bin": b"\0\1"})
    new = await repository.replace(EMPTY_TREE, {"a": b"2\n", "bin": b"\0\2"})
    patch = await repository.diff(old, new)
    assert await repository.apply(old, patch) == new
    assert await repository.apply(new, patch, reverse=True) == old
    assert await repository.apply(new, patch) is None


async def test_a_patch_cannot_leave_the_repository(repository: Repository) -> None:
    tree = await repository.replace(EMPTY_TREE, {"a": b"1\n"})
    patch = b"--- /dev/null\n+++ b/%s\n@@ -0,0 +1 @@\n+x\n"
    assert await repository.apply(tree, patch % b"../out") is None
    assert await repository.apply(tree, patch % b".git/hooks/x") is None


async def test_a_root_commit_has_the_same_id_everywhere(repository: Repository) -> None:
    tree = await repository.replace(EMPTY_TREE, {"a": b"1\n"})
    commit, pack = await repository.pack(tree)
    assert commit == (await repository.pack(tree))[0]
    assert pack.startswith(b"PACK")
    assert (await repository.git("rev-list", commit)).decode().split() == [commit]


async def test_a_failing_git_says_why(repository: Repository) -> None:
    with pytest.raises(GitError, match="does not exist"):
        await repository.read(EMPTY_TREE, "nothing")


async def test_a_lock_keeps_others_out_until_it_is_free(tmp_path: Path) -> None:
    order = []

    async def second() -> None:
        async with locked(tmp_path / "lock"):
            order.append("second")

    async with locked(tmp_path / "lock"):
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.1)
        order.append("first")
    await waiting
    assert order == ["first", "second"]


@pytest.mark.parametrize("patch", [bug_patch(), fix_patch()], ids=["the bug", "the fix"])
async def test_what_applies_decides_whether_patch_is_bug_or_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patch: str
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))
    make_mirror(tmp_path / "m", "sample__1")
    row = make_row(patch=patch, repo_base_url=str(tmp_path / "m"))
    pinned = await pin(Item.model_validate(row), no_asset)
    fixed = await pinned.repository.read(pinned.fixed, "sample/core.py")
    assert fixed.decode() == CORE


async def test_a_patch_that_fits_both_ways_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))
    make_mirror(tmp_path / "m", "sample__1")
    both = (
        "--- a/sample/core.py\n+++ b/sample/core.py\n@@ -7,3 +7,3 @@\n \n"
        "-def label(value):\n+def label(value):\n"
        '     """A name for `value`."""\n'
    )
    row = make_row(patch=both, repo_base_url=str(tmp_path / "m"))
    with pytest.raises(EnvBug, match=r"patch: .*both"):
        await pin(Item.model_validate(row), no_asset)


async def test_a_base_commit_row_leaves_the_branch_row_whose_tip_it_names_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))
    bug = make_mirror(tmp_path / "m", "sample__1")
    branch = Item.model_validate(make_row(patch=bug_patch(), repo_base_url=str(tmp_path / "m")))
    first = await pin(branch, no_asset)
    url = str(tmp_path / "m/someone/sample.git")
    tip = (await run_git("rev-parse", "sample__1", env={"GIT_DIR": url})).decode().strip()
    for commit in (tip, bug):
        at_commit = branch.model_copy(
            update={"base_commit": commit, "FAIL_TO_PASS": branch.PASS_TO_PASS[1:]}
        )
        at_commit = at_commit.model_copy(update={"PASS_TO_PASS": ()})
        await pin(at_commit, no_asset)
    workspace._pins.clear()
    again = await pin(branch, no_asset)
    assert (again.start, again.graded, again.fixed) == (first.start, first.graded, first.fixed)


async def test_a_branch_whose_parent_the_cache_lost_gets_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))
    make_mirror(tmp_path / "m", "sample__1")
    url = str(tmp_path / "m/someone/sample.git")
    branch = Item.model_validate(make_row(patch=bug_patch(), repo_base_url=str(tmp_path / "m")))
    repository, tip = await git_repository(GitPin(branch.clone_url, "sample__1", None))
    shutil.rmtree(repository.path)
    await Repository.create(repository.path)
    kept = "refs/hq/" + hashlib.sha256(b"sample__1").hexdigest()[:24]
    await repository.git("fetch", "-q", "--depth=1", "--", url, f"{tip}:{kept}")
    assert (await pin(branch, no_asset)).fixed


async def test_what_is_written_through_a_scratch_is_gone_with_it(repository: Repository) -> None:
    def objects() -> set[Path]:
        return {path for path in repository.path.rglob("*") if path.is_file()}

    shared = await repository.replace(EMPTY_TREE, {"a": b"1\n"})
    before = objects()
    async with repository.scratch() as scratch:
        own = await scratch.replace(shared, {"b": b"2\n"})
        assert await scratch.files(own) == {"a", "b"}
        assert (await scratch.pack(own))[1].startswith(b"PACK")
        with pytest.raises(GitError):
            await repository.files(own)
    assert objects() == before


async def test_a_scratch_that_a_dead_process_left_is_deleted_and_a_living_one_is_not(
    repository: Repository,
) -> None:
    left = repository.path / "scratch/0123"
    (left / "ab").mkdir(parents=True)
    (left / "in-use").write_text("1")
    async with repository.scratch() as first, repository.scratch():
        assert not left.exists()
        assert await first.replace(EMPTY_TREE, {"a": b"1\n"})
