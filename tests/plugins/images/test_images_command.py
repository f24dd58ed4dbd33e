"""`hermes-queue images`: what it says and how it ends when something is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hermes_plugins.images.cli import kept
from hermes_plugins.images.names import ImageNames, ImageRecord
from hermes_queue.cli import cli
from hermes_queue.images.spec import ImageConfig

BASE = "127.0.0.1:9/base:1"
"""Of a registry that is not there."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path))
    monkeypatch.setenv("HERMES_QUEUE_IMAGES_ALLOWED", '["*", "127.0.0.1:9/*"]')
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == os.geteuid():
            place.chmod(place.stat().st_mode | 0o011)
    return tmp_path


def images(*words: object) -> Result:
    return CliRunner().invoke(cli, ["images", *map(str, words)])


def test_ctrl_c_ends_a_command_with_130(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kept, "with_store", interrupted)
    done = images("list")
    assert (done.exit_code, done.output) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("dockerfile", "said"),
    [
        (b"FROM x\nRUNN true\n", "line 2"),
        (b"FROM x\n# caf\xe9\n", "Dockerfile: line 2 is not UTF-8, byte 0xe9"),
    ],
)
def test_a_wrong_dockerfile_is_named_with_its_line(
    cache: Path, dockerfile: bytes, said: str
) -> None:
    (cache / "task").mkdir()
    (cache / "task" / "Dockerfile").write_bytes(dockerfile)
    done = images("build", cache / "task")
    assert done.exit_code == 2
    assert said in done.output


def test_an_image_that_cannot_be_pulled_is_named_with_the_line_of_the_dockerfile(
    cache: Path,
) -> None:
    (cache / "task").mkdir()
    (cache / "task" / "Dockerfile").write_text(f"ARG X=1\n\nFROM {BASE}\nRUN true\n")
    done = images("build", cache / "task")
    assert done.exit_code == 1
    assert f"Dockerfile line 3: the image {BASE} cannot be pulled" in done.output
    assert "IMAGES_MIRROR" not in done.output  # it stands for Docker Hub alone


def test_an_image_that_is_here_stays_where_its_registry_has_gone(cache: Path) -> None:
    record = ImageRecord(BASE, "top", ImageConfig(), "0" * 64, "imported", "base.tar", 0.0)
    ImageNames(cache / "images").put(record)
    done = images("pull", BASE)
    assert done.exit_code == 1
    assert "The image of that name here stays in use" in done.output
    assert ImageNames(cache / "images").get(BASE) == record
