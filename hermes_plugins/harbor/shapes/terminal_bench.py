"""A folder of terminal-bench 1 as a Harbor task.

Source: harbor 0.25, `harbor/mappers/terminal_bench.py`. Such a folder has `task.yaml`, a
Dockerfile, `docker-compose.yaml` with the service `client`, `run-tests.sh`, `tests/` and
`solution.sh`. A compose file of one service that only builds becomes part of the Dockerfile; any
other one is kept, with `client` as `main`.

Unlike there, `run-tests.sh` that ends with another exit code than 0 and 1 gives no reward: pytest
ends with 1 if a test failed, and what could not run at all must not be a score.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes_plugins.harbor import tree
from hermes_plugins.harbor.compose.document import parsed
from hermes_plugins.harbor.config import MAIN
from hermes_plugins.harbor.shapes.files import read_text, remove
from hermes_plugins.harbor.task import CONFIG, INSTRUCTION
from hermes_queue.errors import EnvBug

logger = logging.getLogger(__name__)

TASK, COMPOSE, RUN_TESTS, SOLUTION = (
    "task.yaml",
    "docker-compose.yaml",
    "run-tests.sh",
    "solution.sh",
)
AGENT_TIMEOUT_S, TEST_TIMEOUT_S = 360.0, 60.0
_OWN = (TASK, COMPOSE, RUN_TESTS, SOLUTION, "solution.yaml", "tests")
"""What no build context has, unless the Dockerfile copies it."""
_COLLAPSED = frozenset(
    "build image container_name command volumes environment working_dir expose entrypoint platform "
    "init stdin_open tty".split()
)
"""Keys of a service that a Dockerfile can say, or that say what the format does anyway."""
_REPLACED = frozenset("build image container_name command environment volumes deploy".split())
_VOLUMES = re.compile(r"\$\{T_BENCH_TASK_(?:AGENT_)?LOGS_PATH\}:.*")
_COPIES = re.compile(r"^\s*(?:COPY|ADD)\s+(?:--\S+\s+)*(?:\./)?(tests|solution\.sh)\b", re.M | re.I)
_TEST_SH = """\
#!/bin/bash
export TEST_DIR=/tests
bash /tests/run-tests.sh
case $? in
  0) echo 1 >/logs/verifier/reward.txt ;;
  1) echo 0 >/logs/verifier/reward.txt ;;
esac
"""


def is_terminal_bench(folder: Path) -> bool:
    """Whether a folder has this shape. Blocking."""
    return (folder / TASK).is_file() and (folder / RUN_TESTS).is_file()


def convert(source: Path, target: Path) -> Path:
    """Write the Harbor task of `source` into the new folder `target`; equal for equal sources.

    Raises:
        EnvBug: a file is missing or cannot be used; names the file and the key.
        OSError: the disk failed.
    """
    tree.entries(source)  # refuses links that leave it
    task = _document(source / TASK)
    target.mkdir()
    try:
        config = _comments(source / TASK) + _config(task, source.name)
        (target / CONFIG).write_text(config, encoding="utf-8")
        instruction = _instruction(task, source / TASK)
        (target / INSTRUCTION).write_text(instruction + "\n", encoding="utf-8")
        _environment(source, target / "environment")
        _tests(source, target / "tests")
        if (source / SOLUTION).is_file():
            (target / "solution").mkdir()
            shutil.copyfile(source / SOLUTION, target / "solution" / "solve.sh")
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target


def _instruction(task: Mapping[str, Any], place: Path) -> str:
    """The instruction; older files have several descriptions, one of them the base."""
    text = task.get("instruction")
    if text is None:
        several = task.get("descriptions")
        found = [each for each in several or () if isinstance(each, dict)]
        found.sort(key=lambda each: each.get("key") != "base")
        text = found[0].get("description") if found else None
    if not isinstance(text, str) or not text.strip():
        raise EnvBug(f"{place}: instruction: is missing; without it an agent has no task")
    return text.strip()


def _comments(path: Path) -> str:
    """The comments that a file begins with: its canary, if it has one."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), read_text(path).splitlines())
    return "".join(f"{line}\n" for line in lines if line.isprintable())


def _config(task: Mapping[str, Any], name: str) -> str:
    lines = ['schema_version = "1.4"', "", "[metadata]", 'source_format = "terminal-bench 1"']
    for key in ("difficulty", "category"):
        if isinstance(task.get(key), str):
            lines.append(f"{key} = {json.dumps(task[key], ensure_ascii=False)}")
    for table, key, default in (
        ("agent", "max_agent_timeout_sec", AGENT_TIMEOUT_S),
        ("verifier", "max_test_timeout_sec", TEST_TIMEOUT_S),
    ):
        seconds = task.get(key, default)
        if not isinstance(seconds, int | float) or not 0 < seconds < 10_000_000:
            raise EnvBug(f"{name}/{TASK}: {key}: must be a number of seconds above 0")
        lines += ["", f"[{table}]", f"timeout_sec = {float(seconds)}"]
    return "\n".join(lines) + "\n"


def _tests(source: Path, target: Path) -> None:
    if (source / "tests").is_dir():
        tree.copy(source / "tests", target)
    else:
        target.mkdir()
    script = read_text(source / RUN_TESTS)
    (target / RUN_TESTS).write_text(script, encoding="utf-8")
    (target / "test.sh").write_text(_TEST_SH, encoding="utf-8")


def _environment(source: Path, target: Path) -> None:
    document = _document(source / COMPOSE) if (source / COMPOSE).is_file() else {}
    services = document.get("services") or {"client": {"build": "."}}
    if not isinstance(services, dict) or not all(isinstance(s, dict) for s in services.values()):
        raise EnvBug(f"{source / COMPOSE}: services: must be a mapping of services")
    name = "client" if "client" in services else next(iter(services))
    service = services[name]
    context, dockerfile = _build(service, source)
    tree.copy(context, target)
    text = read_text(context / dockerfile)
    (target / "Dockerfile").write_text(_completed(text, service, source), encoding="utf-8")
    if context == source:
        copied = {match[1] for match in _COPIES.finditer(text)}
        if copied:
            logger.warning(
                "%s: its Dockerfile copies %s into the agent's box",
                source,
                ", ".join(sorted(copied)),
                extra={"action": "task_shows_tests"},
            )
        for each in set(_OWN) - copied:
            remove(target / each)
    if not _collapses(document, service, services):
        _keep_compose(document, services, name, target)


def _build(service: Mapping[str, Any], source: Path) -> tuple[Path, str]:
    """The build context of the agent's service, and the name of its Dockerfile there."""
    build = service.get("build", ".")
    build = {"context": build} if isinstance(build, str) else build
    if not isinstance(build, dict) or build.get("args"):
        raise EnvBug(f"{source / COMPOSE}: build: has args; write their values into the Dockerfile")
    names = [str(build.get("context", ".")), str(build.get("dockerfile", "Dockerfile"))]
    for each in names:
        if each.startswith(("/", "~")) or ".." in Path(each).parts or "$" in each:
            raise EnvBug(
                f"{source / COMPOSE}: build: {each[:100]!r} is not below the task's folder"
            )
    context = source / names[0]
    if not (context / names[1]).is_file():
        raise EnvBug(f"{context / names[1]}: is missing; the agent's box is built from it")
    return context, names[1]


def _collapses(
    document: Mapping[str, Any], service: Mapping[str, Any], services: Mapping[str, Any]
) -> bool:
    """Whether the compose file says nothing that the Dockerfile does not."""
    volumes = service.get("volumes") or []
    return (
        len(services) == 1
        and set(document) <= {"services", "version"}
        and set(service) <= _COLLAPSED
        and all(isinstance(each, str) and _VOLUMES.fullmatch(each) for each in volumes)
    )


def _completed(text: str, service: Mapping[str, Any], source: Path) -> str:
    """The Dockerfile with what the compose file says about the box."""
    lines = ["ENV TEST_DIR=/tests"]
    for name, value in _variables(service.get("environment") or {}):
        if "\n" in value or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise EnvBug(f"{source / COMPOSE}: environment.{name[:100]}: cannot be a line of ENV")
        quoted = re.sub(r'(["\\$])', r"\\\1", value)
        lines.append(f'ENV {name}="{quoted}"')
    workdir = service.get("working_dir")
    if isinstance(workdir, str) and "$" not in workdir:
        lines.append(f"WORKDIR {workdir}")
    entrypoint = service.get("entrypoint")
    if entrypoint:
        words = entrypoint if isinstance(entrypoint, list) else [entrypoint]
        lines.append(f"ENTRYPOINT {json.dumps([str(word) for word in words])}")
    return text.rstrip("\n") + "\n\n" + "\n".join(lines) + "\n"


def _variables(environment: Any) -> Iterator[tuple[str, str]]:
    """The variables that do not belong to terminal-bench itself."""
    if isinstance(environment, list):
        environment = dict(str(each).partition("=")[::2] for each in environment)
    for name, value in environment.items() if isinstance(environment, dict) else ():
        if "${T_BENCH_" not in str(value):
            yield str(name), "" if value is None else str(value)


def _keep_compose(
    document: Mapping[str, Any], services: Mapping[str, Any], name: str, target: Path
) -> None:
    """Write the compose file as Harbor's: JSON is YAML, too."""
    main = {key: each for key, each in services[name].items() if key not in _REPLACED}
    others = {key: each for key, each in services.items() if key != name}
    rest = {key: each for key, each in document.items() if key not in ("services", "version")}
    text = json.dumps({"services": {MAIN: main, **others}, **rest}, indent=1, default=str)
    text = text.replace("${T_BENCH_TASK_DOCKER_NAME_PREFIX}", "task")
    (target / COMPOSE).write_text(text + "\n", encoding="utf-8")


def _document(path: Path) -> dict[str, Any]:
    found = parsed(read_text(path).encode(), str(path))
    if not isinstance(found, dict):
        raise EnvBug(f"{path}: must be a mapping")
    return found
