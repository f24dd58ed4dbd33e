"""Folders of terminal-bench 1 as Harbor tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_plugins.harbor import tree
from hermes_plugins.harbor.evaluations import is_evaluation
from hermes_plugins.harbor.item import HarborItem
from hermes_plugins.harbor.shapes.known import as_harbor, is_task
from hermes_plugins.harbor.shapes.terminal_bench import convert
from hermes_plugins.harbor.task import TaskFolder
from hermes_plugins.images.context import BuildContext
from hermes_plugins.images.plan import plan
from hermes_queue.errors import EnvBug

pytest.importorskip("yaml")

COMPOSE = """\
services:
  client:
    build: {dockerfile: Dockerfile}
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [sh, -c, sleep infinity]
    environment: ["TEST_DIR=${T_BENCH_TEST_DIR}", 'PRICE=5$ "net"']
    volumes: ["${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}"]
    working_dir: /work
"""
FILES = {
    "task.yaml": "# canary GUID 1\ninstruction: |-\n  Say hello.\ndifficulty: easy\n"
    "max_agent_timeout_sec: 900.0\nmax_test_timeout_sec: 180\nparser_name: pytest\n",
    "docker-compose.yaml": COMPOSE,
    "Dockerfile": "FROM ubuntu:24.04\nCOPY data.txt /app/\n",
    "data.txt": "1\n",
    "run-tests.sh": "pytest $TEST_DIR/test_outputs.py\n",
    "solution.sh": "echo hello\n",
    "tests/test_outputs.py": "def test(): pass\n",
}


def task(folder: Path, **files: str) -> Path:
    for name, text in {**FILES, **{k.replace("__", "."): v for k, v in files.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_task_of_one_container_needs_no_compose_file(tmp_path: Path) -> None:
    source = task(tmp_path / "hello")
    assert is_task(source)
    with as_harbor(source) as folder:
        found = TaskFolder.read(folder)
        assert (found.missing(), found.unsupported(), found.compose) == ([], [], None)
        assert found.instruction == "Say hello."
        assert (found.config.agent.timeout_s, found.verifier.timeout_s) == (900, 180)
        assert found.solution is not None
        assert is_evaluation(found, HarborItem(instance_id="hello", task="/tasks/hello"))
        context = BuildContext(folder / "environment")
        assert sorted(context.entries) == ["Dockerfile", "data.txt"]
        assert context.dockerfile().splitlines()[3:] == [
            "ENV TEST_DIR=/tests",
            'ENV PRICE="5\\$ \\"net\\""',
            "WORKDIR /work",
        ]
        assert plan(context.dockerfile()).images == ("ubuntu:24.04",)
        names = {entry.name for entry in tree.entries(folder / "tests")}
        assert names == {"test.sh", "run-tests.sh", "test_outputs.py"}


def test_several_containers_are_a_compose_file_of_harbor(tmp_path: Path) -> None:
    text = COMPOSE + "    depends_on: [db]\n  db: {image: 'redis:7'}\n"
    source = task(tmp_path / "hello", **{"docker-compose__yaml": text})
    compose = (convert(source, tmp_path / "made") / "environment/docker-compose.yaml").read_text()
    assert '"main": {\n   "working_dir": "/work",\n   "depends_on"' in compose
    assert '"image": "redis:7"' in compose
    assert "T_BENCH" not in compose


def test_equal_folders_become_equal_tasks(tmp_path: Path) -> None:
    made = [convert(task(tmp_path / name), tmp_path / f"{name}-made") for name in ("a", "b")]
    assert tree.digest(made[0]) == tree.digest(made[1])


def test_tests_are_in_the_box_only_if_its_dockerfile_copies_them(tmp_path: Path) -> None:
    text = "FROM ubuntu:24.04\nCOPY --chmod=755 ./tests /tests\n"
    made = convert(task(tmp_path / "a", Dockerfile=text), tmp_path / "made")
    assert (made / "environment/tests/test_outputs.py").is_file()
    assert not (made / "environment/solution.sh").exists()


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"task__yaml": "difficulty: easy\n"}, "instruction: is missing"),
        ({"task__yaml": "instruction: a\nmax_agent_timeout_sec: soon\n"}, "max_agent_timeout_sec"),
        ({"task__yaml": "a: &a [*a, *a]\n: {"}, "is not YAML"),
        ({"docker-compose__yaml": "services: {client: {build: ../other}}"}, "not below"),
        ({"docker-compose__yaml": "services: {client: {build: {args: {A: 1}}}}"}, "has args"),
        ({"docker-compose__yaml": "services: [1]"}, "must be a mapping"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_key(
    tmp_path: Path, files: dict[str, str], named: str
) -> None:
    source = task(tmp_path / "a", **files)
    with pytest.raises(EnvBug, match=named):
        convert(source, tmp_path / "made")
    assert not (tmp_path / "made").exists()
