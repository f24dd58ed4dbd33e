"""A folder of endless-terminals as a Harbor task.

Source: github.com/kanishkg/endless-terminals. Such a folder has `task.json` (the field
`description` is the instruction; `truth` is what the tests know and is left behind),
`container.def` or a Dockerfile, `test_initial_state.py`, which must pass before the agent begins,
and `test_final_state.py`, which grades. The agent is `user`; there is no solution.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from hermes_plugins.harbor import tree
from hermes_plugins.harbor.endless import definition
from hermes_plugins.harbor.shapes.files import read_text, remove
from hermes_plugins.harbor.task import CONFIG, INITIAL, INSTRUCTION
from hermes_queue.errors import EnvBug

TASK, INITIAL_TEST, FINAL_TEST = "task.json", "test_initial_state.py", "test_final_state.py"
_OWN = (TASK, INITIAL_TEST, FINAL_TEST, definition.NAME, "solution", "solutions", ".dockerignore")
"""What no build context may have."""

_TOML = """\
schema_version = "1.4"

[task]
name = "endless-terminals"

[agent]
user = "user"

[verifier]
timeout_sec = 300
"""
_BEFORE = """\
RUN ! command -v python3 >/dev/null || python3 -I -c 'import pytest' 2>/dev/null \\
    || PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet pytest || true
"""
"""Equal in all tasks of one base, so that their images share it."""
_AFTER = """\
USER root
RUN python3 -I -c 'import pytest' 2>/dev/null \\
    || PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet pytest \\
    || { apt-get update && apt-get install -y --no-install-recommends python3-pytest; }
RUN id user >/dev/null 2>&1 || { useradd --create-home --shell /bin/bash user \
    && chown -R user: /home/user; }
WORKDIR /home/user
"""
# The agent's files must not take part: no configuration, plugin, conftest.py or user's packages.
_PYTEST = """\
cd /
PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python3 -I -B -m pytest -q -p no:cacheprovider --noconftest \\
  -c /dev/null --rootdir "$place" "$place/{test}"
"""
_TEST_SH = f"""\
#!/bin/bash
place=/tests
{_PYTEST.format(test=FINAL_TEST)}
case $? in
  0) echo 1 >/logs/verifier/reward.txt ;;
  1) echo 0 >/logs/verifier/reward.txt ;;
esac
"""
_CHECK_SH = f"""\
#!/bin/bash
place=$(dirname "$0")
export TMPDIR=$place
{_PYTEST.format(test=INITIAL_TEST)}"""


def is_endless(folder: Path) -> bool:
    """Whether a folder has this shape. Blocking."""
    names = (TASK, INITIAL_TEST, FINAL_TEST)
    return not (folder / CONFIG).exists() and all((folder / name).is_file() for name in names)


def convert(source: Path, target: Path) -> Path:
    """Write the Harbor task of `source` into the new folder `target`; equal for equal sources.

    Raises:
        EnvBug: a file is missing or cannot be used; names the file, and the line if there is one.
        OSError: the disk failed.
    """
    tree.entries(source)  # refuses links that leave it
    instruction = _instruction(source / TASK)
    target.mkdir()
    try:
        _environment(source, target / "environment")
        texts = {
            CONFIG: _TOML,
            INSTRUCTION: instruction + "\n",
            "tests/test.sh": _TEST_SH,
            f"tests/{FINAL_TEST}": read_text(source / FINAL_TEST),
            f"{INITIAL}/check.sh": _CHECK_SH,
            f"{INITIAL}/{INITIAL_TEST}": read_text(source / INITIAL_TEST),
        }
        for name, text in texts.items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_text(text, encoding="utf-8")
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target


def _environment(source: Path, target: Path) -> None:
    for place in (source / "environment", source):
        if (place / "Dockerfile").is_file():
            tree.copy(place, target)
            for name in _OWN:
                remove(target / name)
            own = read_text(target / "Dockerfile")
            (target / "Dockerfile").write_text(f"{own.rstrip()}\n{_AFTER}", encoding="utf-8")
            return
    if not (source / definition.NAME).is_file():
        raise EnvBug(f"{source}: has neither {definition.NAME} nor a Dockerfile")
    text, post = definition.dockerfile(read_text(source / definition.NAME))
    base, _, rest = text.partition("\n")
    target.mkdir()
    (target / "Dockerfile").write_text(f"{base}\n{_BEFORE}{rest}{_AFTER}", encoding="utf-8")
    (target / definition.POST).write_text(post, encoding="utf-8")


def _instruction(path: Path) -> str:
    try:
        task = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise EnvBug(f"{path}: is no JSON: {error}") from error
    if not isinstance(task, dict):
        raise EnvBug(f"{path}: must be an object")
    for name in ("description", "task_description"):
        text = task.get(name)
        if isinstance(text, str) and text.strip():
            return text.strip()
    raise EnvBug(f"{path}: description: is missing; without it an agent does not know its task")
