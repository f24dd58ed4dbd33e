"""Dockerfiles as they are given to Modal's builder."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_plugins.images.context import BuildContext
from hermes_plugins.images.modal.dockerfile import END, ModalBuild, prepare
from hermes_plugins.images.plan import plan
from hermes_queue.errors import SandboxRejected
from hermes_queue.images.spec import ImageConfig

BASE = ImageConfig(env={"PATH": "/bin"}, workdir="/base", user="ann")


def prepared(folder: Path, text: str, target: Path) -> ModalBuild:
    (folder / "Dockerfile").write_text(text)
    context = BuildContext(folder)
    target.mkdir()
    names = {"base": "base@sha256:1"}
    return prepare(context, plan(text), {"base": BASE}, names, target)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "words").write_text("words\n")
    return tmp_path / "context"


def test_without_files_the_dockerfile_stays_and_ends_as_root(folder, tmp_path):
    made = prepared(folder, "FROM base\nENV A=1\nRUN true\n", tmp_path / "out")
    assert made.text == "\n".join(["FROM base@sha256:1", "ENV A=1", "RUN true", "", *END, ""])
    assert made.config == ImageConfig(
        env={"PATH": "/bin", "A": "1"}, workdir="/base", user="ann", command=made.config.command
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_files_come_from_a_first_stage_with_the_whole_context(folder, tmp_path):
    text = (
        "ARG WHICH=base\nFROM ${WHICH} AS parts\nCOPY words \\\n  /a/\nFROM base\n"
        'COPY --from=0 /a /b\nCOPY --from=parts /a /c\nCOPY --chown=7 ["words", "/d e/"]\n'
    )
    made = prepared(folder, text, tmp_path / "out")
    lines = [line for line in made.text.split("\n") if line]
    assert lines == [
        *("ARG WHICH=base", "FROM scratch AS hermes-queue-context", "COPY . /"),
        "FROM base@sha256:1 AS parts",
        'COPY --from=hermes-queue-context ["words", "/a/"]',
        "FROM base@sha256:1",
        'COPY --from=1 ["/a", "/b"]',
        'COPY --from=parts ["/a", "/c"]',
        'COPY --chown=7 --from=hermes-queue-context ["words", "/d e/"]',
        *END,
    ]
    assert (tmp_path / "out" / "words").read_text() == "words\n"


def test_an_archive_that_add_would_unpack_is_refused(folder, tmp_path):
    (folder / "a.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(SandboxRejected, match="line 2: ADD: ADD of an archive cannot be uploaded"):
        prepared(folder, "FROM base\nADD a.tar.gz /a\n", tmp_path / "out")


def test_links_and_empty_folders_matter_only_where_they_are_copied(folder, tmp_path):
    (folder / "link").symlink_to("words")
    (folder / "empty").mkdir()
    prepared(folder, "FROM base\nRUN true\n", tmp_path / "out")
    with pytest.raises(SandboxRejected, match=r"line 2: COPY: the empty folder \./empty cannot"):
        prepared(folder, "FROM base\nCOPY . /a\n", tmp_path / "again")
