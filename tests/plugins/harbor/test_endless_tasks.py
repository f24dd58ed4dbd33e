"""Folders of endless-terminals as Harbor tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes_plugins.harbor import tree
from hermes_plugins.harbor.endless.convert import convert, is_endless
from hermes_plugins.harbor.endless.definition import dockerfile
from hermes_plugins.harbor.producer import PRODUCER
from hermes_plugins.harbor.task import TaskFolder
from hermes_queue.errors import EnvBug
from producers.run.options import parse
from producers.run.selection import select

HEAD = "Bootstrap: localimage\nFrom: ./ubuntu_22.04.sif\n"
TASKS = Path(__file__).parent / "on_images" / "endless"


def endless(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    found = {
        "task.json": json.dumps({"description": "Make a file.", "truth": "SECRET"}),
        "test_initial_state.py": "def test_it(): pass\n",
        "test_final_state.py": "def test_it(): assert 0\n",
        "container.def": HEAD + "%post\n    useradd -m user\n",
        **{name.replace("__", "."): text for name, text in files.items()},
    }
    for name, text in found.items():
        (folder / name).write_text(text)
    return folder


def test_a_definition_becomes_a_dockerfile_with_its_commands_in_a_file() -> None:
    text, post = dockerfile(
        HEAD
        + "\n%post\n    cat <<EOF >/x\n100 % sure\nEOF\n\n%environment\n    # paths\n"
        + "    export PATH=/opt/bin:$PATH HOME=/home/user\n"
        + "    A='b \"c\"'\n    chmod 755 /home/user\n"
        + "%runscript\n    echo hello\n%runscript\n    echo again\n"
    )
    assert text.splitlines()[0] == "FROM ubuntu:22.04"
    assert text.splitlines()[-2:] == ['ENV PATH="/opt/bin:$PATH"', 'ENV A="b \\"c\\""']
    assert post == "    cat <<EOF >/x\n100 % sure\nEOF\n\nchmod 755 /home/user || true\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Bootstrap: library\nFrom: x\n", "container.def:1: .*docker or localimage"),
        ("Bootstrap: docker\nFrom: x\nStage: build\n", "container.def:3: .*Bootstrap and From"),
        ("Bootstrap: docker\nFrom: x y\n", "container.def:2: .*name an image"),
        ("Bootstrap: localimage\nFrom: /srv/mine.sif\n", "NAME_TAG.sif"),
        ("%post\n  true\n", "must begin with"),
        (HEAD + "%files\n  a /b\n", "container.def:3: '%files'"),
        (HEAD + "%post -x\n", "container.def:3: .*-c"),
        (HEAD + "%post\n  echo {{ version }}\n", "container.def:4: .*build arguments"),
        (HEAD + "%environment\n  export A=$(date)\n", "container.def:4: .*plain assignments"),
        (HEAD + "%environment\n  export A='$B'\n", "container.def:4: .*plain assignments"),
        (HEAD + "%environment\n  source /x\n", "container.def:4: .*plain assignments"),
        (HEAD + "%environment\n  export A='b\n", "container.def:4: .*quotation"),
    ],
)
def test_what_no_dockerfile_can_do_is_refused_with_its_line(text: str, named: str) -> None:
    with pytest.raises(EnvBug, match=named):
        dockerfile(text)


def test_a_folder_becomes_a_task_for_an_ordinary_user_that_shows_no_truth(tmp_path: Path) -> None:
    source = endless(tmp_path / "source")
    (source / "solutions").mkdir()
    (source / "solutions" / "x.json").write_text("SECRET")
    made = convert(source, tmp_path / "made")
    task = TaskFolder.read(made)
    assert (task.instruction, task.config.agent.user) == ("Make a file.", "user")
    assert (task.missing(), task.unsupported(), task.solution) == ([], [], None)
    assert task.initial is not None
    texts = [path.read_text() for path in made.rglob("*") if path.is_file()]
    assert not [text for text in texts if "SECRET" in text]
    again = convert(source, tmp_path / "again")
    assert tree.digest(made) == tree.digest(again)


def test_a_dockerfile_keeps_its_context_without_the_tests(tmp_path: Path) -> None:
    source = endless(tmp_path / "source", Dockerfile="FROM debian\nCOPY . /srv\n", data__txt="1")
    environment = convert(source, tmp_path / "made") / "environment"
    assert sorted(path.name for path in environment.iterdir()) == ["Dockerfile", "data.txt"]


@pytest.mark.parametrize(
    ("task", "named"),
    [("{", "no JSON"), ("[1]", "object"), ('{"truth": "x"}', "description: is missing")],
)
def test_a_task_without_an_instruction_is_refused(tmp_path: Path, task: str, named: str) -> None:
    source = endless(tmp_path / "source", task__json=task)
    with pytest.raises(EnvBug, match=named):
        convert(source, tmp_path / "made")


def test_the_producer_finds_such_folders_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))
    endless(tmp_path / "tasks" / "one")
    options = parse(PRODUCER, ["--dataset", str(tmp_path / "tasks"), "--items", "all"])
    dataset = PRODUCER.dataset_of(options.rows.dataset)
    from hermes_plugins.harbor.env import ENV

    [item] = select(PRODUCER, ENV, dataset, options).items
    made = convert(tmp_path / "tasks" / "one", tmp_path / "made")
    assert item.item()["digest"] == tree.digest(made)


def test_all_tasks_of_the_suite_can_be_converted(tmp_path: Path) -> None:
    found = [folder for folder in sorted(TASKS.iterdir()) if is_endless(folder)]
    assert len(found) == 6
    for folder in found:
        assert TaskFolder.read(convert(folder, tmp_path / folder.name)).missing() == []
