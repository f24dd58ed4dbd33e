"""Build contexts are walked as hostile input; what COPY takes from them is known before a build."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from hermes_plugins.images import context as contexts
from hermes_plugins.images.context import BuildContext
from hermes_plugins.images.copying import ContextCopy, write_engine_tar
from hermes_plugins.images.dockerfile.evaluation import CopyStep
from hermes_plugins.images.dockerfile.old_engines import for_old_engines
from hermes_queue.errors import EnvBug
from hermes_queue.images.spec import ImageSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "context"
    (place / "src" / "deep").mkdir(parents=True)
    (place / "Dockerfile").write_text("FROM a\n")
    (place / "src" / "a.txt").write_text("a")
    (place / "src" / "deep" / "b.txt").write_text("b")
    return place


def copied(folder: Path, *sources: str, unpack: bool = False) -> tuple[list[str], list[str]]:
    """The index that COPY sends, as `kind:name`, and the names of the members after it."""
    step = CopyStep(7, sources, (), "/x/", None, "", None, unpack)
    buffer = io.BytesIO()
    ContextCopy(step, BuildContext(folder)).write(buffer)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as tar:
        first, *others = tar.getmembers()
        file = tar.extractfile(first)
        assert file is not None
        index = [f"{each['kind']}:{each['name']}" for each in json.load(file)]
    return index, [each.name for each in others]


def test_the_digest_is_over_names_modes_and_contents(folder: Path) -> None:
    digest = BuildContext(folder).digest
    assert BuildContext(folder).digest == digest
    (folder / "src" / "a.txt").chmod(0o755)
    changed = BuildContext(folder).digest
    (folder / "src" / "a.txt").rename(folder / "src" / "c.txt")
    renamed = BuildContext(folder).digest
    (folder / "src" / "c.txt").write_text("other")
    assert len({digest, changed, renamed, BuildContext(folder).digest}) == 4


def test_another_digest_is_refused_and_both_are_named(folder: Path) -> None:
    spec = ImageSpec(context=str(folder), digest="0" * 64)
    with pytest.raises(EnvBug, match=f"{BuildContext(folder).digest}.*{'0' * 64}"):
        BuildContext.open(spec)


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "deep/../../../x"])
def test_links_out_of_the_folder_are_refused_with_their_path(folder: Path, target: str) -> None:
    (folder / "src" / "link").symlink_to(target)
    with pytest.raises(EnvBug, match="src/link: the link leads out"):
        BuildContext(folder)


def test_what_is_no_file_is_refused_with_its_path(folder: Path) -> None:
    os.mkfifo(folder / "src" / "pipe")
    with pytest.raises(EnvBug, match="src/pipe: neither a file"):
        BuildContext(folder)


def test_names_that_are_no_text_are_refused(folder: Path) -> None:
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff"))).write_text("")
    with pytest.raises(EnvBug, match="not UTF-8"):
        BuildContext(folder)


def test_too_many_too_large_and_too_deep_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "MAX_ENTRIES", 3)
    with pytest.raises(EnvBug, match="more than 3 files"):
        BuildContext(folder)
    monkeypatch.setattr(contexts, "MAX_ENTRIES", 100)
    with (folder / "large").open("wb") as file:
        file.truncate(contexts.MAX_BYTES + 1)
    with pytest.raises(EnvBug, match=r"more than 4 GiB, at large"):
        BuildContext(folder)
    (folder / "large").unlink()
    folder.joinpath(*["d"] * (contexts.MAX_DEPTH + 2)).mkdir(parents=True)
    with pytest.raises(EnvBug, match="directories deep"):
        BuildContext(folder)


def test_files_that_change_under_a_build_are_noticed(folder: Path) -> None:
    context = BuildContext(folder)
    (folder / "src" / "a.txt").write_text("X")
    step = CopyStep(1, ("src",), (), "/x/", None, "", None, unpack=False)
    with pytest.raises(EnvBug, match=r"src/a\.txt has changed"):
        ContextCopy(step, context).write(io.BytesIO())


def test_copy_takes_files_contents_of_directories_and_patterns(folder: Path) -> None:
    assert copied(folder, "src/a.txt") == (["file:a.txt"], ["0"])
    assert copied(folder, "/src") == (
        ["directory:src"],
        ["0", "0/a.txt", "0/deep", "0/deep/b.txt"],
    )
    assert copied(folder, "s*/*.txt", "src/deep") == (
        ["file:a.txt", "directory:deep"],
        ["0", "1", "1/b.txt"],
    )


def test_a_link_as_a_source_is_followed_inside_the_folder_alone(folder: Path) -> None:
    (folder / "link").symlink_to("src/deep/b.txt")
    (folder / "round").symlink_to("round")
    assert copied(folder, "link") == (["file:link"], ["0"])
    with pytest.raises(EnvBug, match=r"line 7.*round"):
        copied(folder, "round")


@pytest.mark.parametrize("source", ["..", "../..", "src/../../x", "/../etc", "missing", "*.none"])
def test_sources_that_are_not_in_the_folder_are_refused(folder: Path, source: str) -> None:
    with pytest.raises(EnvBug, match="Dockerfile line 7: COPY: the source"):
        copied(folder, source)


def test_only_add_unpacks_and_only_archives(folder: Path) -> None:
    with tarfile.open(folder / "x.tar.gz", "w:gz") as tar:
        tar.add(folder / "src", "src")
    assert copied(folder, "x.tar.gz")[0] == ["file:x.tar.gz"]
    assert copied(folder, "x.tar.gz", "src/a.txt", unpack=True)[0] == [
        "archive:x.tar.gz",
        "file:a.txt",
    ]


def test_ignored_files_stay_out_unless_a_later_pattern_brings_them_back(folder: Path) -> None:
    (folder / ".dockerignore").write_text("# a comment\nsrc\n!src/deep/b.txt\nDockerfile\n")
    assert list(BuildContext(folder).included()) == [
        ".dockerignore",
        "src",
        "src/deep",
        "src/deep/b.txt",
    ]


@pytest.mark.parametrize("pattern", ["*a*a*a*a*b", "**/" * 9 + "x", "x" * 2000, "[a"])
def test_patterns_that_match_for_years_are_refused(folder: Path, pattern: str) -> None:
    (folder / ".dockerignore").write_text(pattern)
    with pytest.raises(EnvBug, match="dockerignore"):
        BuildContext(folder).included()


def test_an_engine_gets_the_rewritten_dockerfile_and_copies_with_other_modes(folder: Path) -> None:
    text = "FROM a\nCOPY --chmod=711 src/*.txt /d/\nCOPY --chmod=755 src /e\nCOPY <<E /f\nhi\nE\n"
    (folder / "Dockerfile").write_text(text)
    (folder / ".dockerignore").write_text("Dockerfile\n")
    buffer = io.BytesIO()
    build = for_old_engines(text)
    write_engine_tar(BuildContext(folder), build, buffer)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as tar:
        found = {each.name: each for each in tar}
        file = tar.extractfile("Dockerfile")
        assert file is not None
        assert file.read().decode() == build.text
    assert found[".hermes-queue/2/a.txt"].mode == 0o711
    assert found[".hermes-queue/3/src/deep/b.txt"].mode == 0o755
    assert found[".hermes-queue/4/E"].size == 3
    assert found["src/a.txt"].mode == 0o644
    assert ".dockerignore" not in found
