"""Compose files of tasks: what is read, what is refused and why, and files that are hostile."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from harbor_tasks import IMAGE, write_task

from hermes_plugins.harbor import box, boxes
from hermes_plugins.harbor.compose.document import read_document
from hermes_plugins.harbor.compose.reader import ComposeTask, read_compose
from hermes_plugins.harbor.config import EnvironmentTable
from hermes_plugins.harbor.grading.services import refuse_hiding
from hermes_plugins.harbor.task import TaskFolder
from hermes_queue.errors import EnvBug, SandboxRejected
from hermes_queue.images.spec import ImageConfig, ImageSpec
from hermes_queue.sandbox.base import Capabilities, Slot, SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.services import (
    ServiceDependency,
    ServiceHealthcheck,
    ServiceSpec,
    ServiceVolume,
    possible_on,
)

MAIN = EnvironmentTable(cpus=2, memory_mb=512, env={"A": "1"})


class Alone:
    """A backend without services."""

    capabilities = Capabilities(isolation=True, images=True)


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Reads a compose file beside a Dockerfile and the folder `db` with another."""

    def run(text: str, table: EnvironmentTable = MAIN) -> ComposeTask:
        for name in ("Dockerfile", "db/Dockerfile"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("FROM debian:bookworm\n")
        (tmp_path / "docker-compose.yaml").write_text(text)
        return read_compose(tmp_path / "docker-compose.yaml", table)

    return run


def test_services_are_read_with_all_that_a_slot_can_give_them(read: Any, tmp_path: Path) -> None:
    [db, job] = read(
        """
        x-common: &common {environment: {B: 2, C: true, D: }}
        services:
          main: {depends_on: {db: {condition: service_healthy}}}
          db:
            <<: *common
            build: ./db
            command: serve --port 5000 'a b'
            user: 1000
            working_dir: /srv
            hostname: database
            expose: ["5000"]
            healthcheck:
              {test: curl -f localhost, interval: 1m30s, timeout: 500ms,
               start_period: 2s, retries: 5}
            depends_on: {job: {condition: service_completed_successfully}}
            volumes: ["data:/var/lib/db", {type: tmpfs, target: /run/db}]
            deploy: {resources: {limits: {cpus: "0.5", memory: 64M}}}
          job:
            image: busybox:1
            entrypoint: ["/bin/prepare"]
            environment: [E=1=2]
            volumes: [{type: volume, source: data, target: /data, read_only: true}]
            networks: {default: {aliases: [helper]}}
            mem_limit: 1g
        volumes: {data: }
        """
    ).services
    assert db == ServiceSpec(
        name="db",
        image=ImageSpec(context=str(tmp_path / "db")),
        aliases=("database",),
        command=("serve", "--port", "5000", "a b"),
        env=(("B", "2"), ("C", "true"), ("D", "")),
        healthcheck=ServiceHealthcheck(("/bin/sh", "-c", "curl -f localhost"), 90, 0.5, 2, 5),
        depends_on=(ServiceDependency("job", "completed"),),
        user="1000",
        workdir="/srv",
        cpus=0.5,
        memory_mb=64,
        volumes=(ServiceVolume("data", "/var/lib/db"),),
        tmpfs=("/run/db",),
    )
    assert job == ServiceSpec(
        name="job",
        image=ImageSpec("busybox:1"),
        aliases=("helper",),
        entrypoint=("/bin/prepare",),
        env=(("E", "1=2"),),
        volumes=(ServiceVolume("data", "/data", read_only=True),),
        memory_mb=1024,
    )


def test_main_completes_the_tasks_own_table(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "task",
        config=IMAGE + '[agent]\nuser = "alice"\n',
        environment__docker_compose_dot_yaml="",
    )
    (folder / "environment" / "docker_compose.yaml").unlink()
    (folder / "environment" / "docker-compose.yaml").write_text(
        """
        services:
          main:
            image: ${MAIN_IMAGE_NAME}
            user: "1000:1000"
            working_dir: /work
            environment: {TESTS: "${TEST_DIR} ${CPUS} ${MEMORY} $$HOME ${CONTEXT_DIR}/a"}
            entrypoint: /start
            command: ["run", "all"]
            volumes: ["${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}"]
            healthcheck: {test: ["CMD", "test", "-e", "/a b"], interval: 2s}
          twin: {image: "${MAIN_IMAGE_NAME}", command: serve}
        """
    )
    task = TaskFolder.read(folder)
    assert (task.missing(), task.unsupported(), task.notes) == ([], [], ())
    spec = boxes.agent_spec(task, "default")
    assert (spec.image, spec.workdir) == (ImageSpec("debian:bookworm"), "/work")
    assert (spec.user, task.verifier.user) == ("alice", "1000")
    assert dict(spec.env) == {"TESTS": "/tests 1 2048M $HOME /hermes-queue-context/a"}
    assert [(each.name, each.image) for each in spec.services] == [("twin", spec.image)]
    assert boxes.grading_spec(task, "default").services == spec.services
    assert box.program(None, task) == ("/start", "run", "all")
    check = task.environment.healthcheck
    assert check is not None
    assert (check.command, check.interval_s) == ("test -e '/a b'", 2)


def test_a_verifier_in_a_box_of_its_own_has_no_services(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "task", config=IMAGE + '[verifier]\nenvironment_mode = "separate"\n'
    )
    (folder / "environment").mkdir()
    file = folder / "environment" / "docker-compose.yaml"
    file.write_text("services: {db: {image: busybox}}")
    assert boxes.agent_spec(TaskFolder.read(folder), "default").services
    assert not boxes.grading_spec(TaskFolder.read(folder), "default").services
    file.rename(folder / "tests" / "docker-compose.yaml")
    assert "tests/docker-compose.yaml" in TaskFolder.read(folder).unsupported()[0]


def test_a_file_that_cannot_be_used_is_a_task_that_is_skipped(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task")
    (folder / "environment").mkdir()
    file = folder / "environment" / "docker-compose.yaml"
    file.write_text("services: {db: {image: x, privileged: true}}")
    task = TaskFolder.read(folder)
    assert task.missing() == []
    [problem] = task.unsupported()
    assert "services.db.privileged" in problem


@pytest.mark.parametrize(
    ("service", "named"),
    [
        ("privileged: true", "services.s.privileged: no service gets rights on its host"),
        ("cap_add: [NET_ADMIN]", "services.s.cap_add"),
        ("devices: [/dev/kvm]", "services.s.devices"),
        ("network_mode: host", "services.s.network_mode"),
        ('network_mode: "service:main"', "services.s.network_mode"),
        ("pid: host", "services.s.pid"),
        ("ports: ['80:80']", "services.s.ports: .* use `expose`"),
        ("volumes: ['/:/host']", "services.s.volumes.0: folders and files of the host"),
        ("volumes: ['./x:/x:ro']", "services.s.volumes.0: .* COPY"),
        ("volumes: ['/var/run/docker.sock:/s']", "services.s.volumes.0"),
        ("volumes: ['other:/x']", "volumes.other: is used, and not declared"),
        ("volumes: ['x:/']", "services.s.volumes.0: nothing can be mounted at /:"),
        ("tmpfs: /", "services.s.tmpfs: nothing can be mounted at /:"),
        ("tmpfs: ['//:size=1m']", "services.s.tmpfs: nothing can be mounted at /:"),
        ("tmpfs: /proc/sys", "services.s.tmpfs: nothing can be mounted at /proc/sys"),
        ("build: ..", "services.s.build.context: '..' is outside"),
        ("build: {context: ., dockerfile_inline: FROM x}", "services.s.build.dockerfile_inline"),
        ("build: /etc", "services.s.build.context"),
        ("build: {context: db, dockerfile: Other}", "services.s.build.dockerfile"),
        ("build: {context: db, args: {A: 1}}", "services.s.build.args"),
        ("deploy: {replicas: 3}", "services.s: a service is one container"),
        ("mem_limit: much", "services.s.mem_limit"),
        ("healthcheck: {test: [A, b]}", "services.s.healthcheck.test"),
        ("healthcheck: {test: a, interval: soon}", "services.s.healthcheck.interval"),
        ("depends_on: [nobody]", "services.s.depends_on: there is no 'nobody'"),
        ("depends_on: [s]", "form a circle"),
        ("depends_on: {t: {condition: service_healthy}}", "services.t.healthcheck: is missing"),
        ("networks: {default: {ipv4_address: 10.0.0.5}}", "services.s.networks.default"),
        ("networks: [back]", "services.s.networks: main and s are kept apart"),
        ("hostname: 'a b'", "'a b' is no host name"),
        ("env_file: .env", "services.s.env_file"),
        ("environment: {A: '${SECRET}'}", "HERMES_QUEUE_HARBOR_ENV"),
        ("user: 'a;b'", "services.s.user"),
    ],
)
def test_what_no_service_can_have_is_refused_by_its_key(
    read: Any, service: str, named: str
) -> None:
    text = f"services:\n  main: {{}}\n  t: {{image: x}}\n  s:\n    image: x\n    {service}\n"
    with pytest.raises(EnvBug, match=named):
        read(text)


def test_further_keys_are_named_once_and_change_nothing(read: Any) -> None:
    found = read(
        "version: '3'\nodd: 1\nservices:\n"
        "  s: {image: x, restart: always, odd: 1, expose: [80], tty: true, x-mine: 1}\n"
    )
    assert sorted(found.notes) == [
        "docker-compose.yaml: key services.s.odd has no effect here",
        "docker-compose.yaml: key services.s.restart has no effect here",
        "docker-compose.yaml: unknown key odd",
    ]


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("$A${A}", "11"),
        ("$$A", "$A"),
        ("${B:-x}${B-y}", "xy"),
        ("${E:-x}${E-y}", "x"),
        ("${A:+x}${B:+y}", "x"),
        ("$", "$"),
    ],
)
def test_variables_are_filled_in_as_compose_does(template: str, filled: str) -> None:
    document = read_document(f"a: {template}".encode(), {"A": "1", "E": ""}, "file")
    assert document == {"a": filled}


BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcd", "bcde", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "a: &a [*a]",
        "[" * 5000,
        "x: " + "{a: " * 30 + "1" + "}" * 30,
        "x: [" + "1," * 5100 + "]",
        "# " + "x" * 70_000,
        "a: !!python/object/apply:os.system [id]",
        "a: 2020-99-99",
        "? [a]\n: 1",
        "\0",
        "0x" + "f" * 20_000 + ": 1",
        "- 1",
        "a: ${NOBODY}",
    ],
)
def test_hostile_files_are_refused_at_little_cost(text: str) -> None:
    with pytest.raises(EnvBug, match="file"):
        read_document(text.encode(), {}, "file")


@pytest.mark.parametrize("name", ["${CONTEXT_DIR}", "${CONTEXT_DIR}/db", "${CONTEXT_DIR}/./db/"])
def test_the_folder_of_the_file_has_a_name_of_its_own(read: Any, tmp_path: Path, name: str) -> None:
    [found] = read(f"services: {{s: {{build: {{context: '{name}'}}}}}}").services
    assert found.image.context == str(tmp_path / "db" if "db" in name else tmp_path)


def test_the_folder_of_the_file_cannot_be_left_by_its_name(read: Any) -> None:
    with pytest.raises(EnvBug, match="is outside of"):
        read("services: {s: {build: '${CONTEXT_DIR}/../x'}}")


@pytest.mark.parametrize(
    ("target", "hides"),
    [
        ("/opt", True),
        ("/opt/venv", True),
        ("/opt/venv/bin", True),
        ("/app", True),
        ("/srv/lib", True),
        ("/root", True),
        ("/root/.config/pip", True),
        ("/home/u", True),
        ("/home/u/data", False),
        ("/app/data", False),
        ("/data", False),
    ],
)
def test_a_volume_over_what_decides_what_runs_is_refused(target: str, hides: bool) -> None:
    variables = {"PATH": "/opt/venv/bin:/usr/bin", "PYTHONPATH": "/srv/lib"}
    spec = SlotSpec(image=ImageSpec("x"), volumes=(ServiceVolume("data", target),))
    config = ImageConfig(env=variables, workdir="/app")
    slot = Slot("s", "t", "b", "/app", spec, image_config=config)
    context = SlotContext(Alone(), slot, deadline=0.0)  # type: ignore[arg-type]
    with pytest.raises(EnvBug, match="data:") if hides else nullcontext():
        refuse_hiding(context)


def test_a_backend_without_services_is_refused_before_it_has_a_slot() -> None:
    spec = SlotSpec(services=(ServiceSpec("db", ImageSpec("x")),))
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_SANDBOX_BACKEND=docker"):
        possible_on(Alone(), spec)  # type: ignore[arg-type]
    possible_on(Alone(), SlotSpec())  # type: ignore[arg-type]
