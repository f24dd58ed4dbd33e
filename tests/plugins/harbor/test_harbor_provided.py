"""What tests get before the agent's files: an interpreter, and measured imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_plugins.harbor.cheats import cases
from hermes_plugins.harbor.grading import imported, kit, modes
from hermes_plugins.harbor.grading.needs import needs_of, project_files
from hermes_plugins.harbor.grading.places import Decisive, folders_entered
from hermes_plugins.harbor.grading.suspects import changed_programs
from hermes_queue.images.spec import ImageConfig
from hermes_queue.models import ToolCall
from hermes_queue.sandbox.image_slots import FileChange

SHIM = Path(kit.__file__).parent / "shims" / "uv"
PROJECT = project_files("uv init\nuv add pytest\nuv run pytest /tests/t.py")
DECISIVE = Decisive.of(ImageConfig(), "/app", PROJECT)


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        (["run", "-p", "3.11", "x"], ["run", "--python", "/image/python3.11", "x"]),
        (["run", "--python=3.11.4", "x"], ["run", "--python", "/image/python3.11", "x"]),
        (["run", "-p", "3.13", "x"], ["run", "--python", "/image/python3.12", "x"]),
        (["pip", "--python", "/own/python", "x"], ["pip", "--python", "/own/python", "x"]),
        (["run", "pytest", "-p", "no:cache"], ["run", "pytest", "-p", "no:cache"]),
    ],
)
def test_the_kit_looks_for_a_python_in_its_list_alone(
    tmp_path: Path, given: list[str], passed_on: list[str]
) -> None:
    kit_folder, work = tmp_path / "kit", tmp_path / "work"
    kit_folder.mkdir()
    (work / ".venv" / "bin").mkdir(parents=True)
    (work / ".venv" / "bin" / "python").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (work / ".venv" / "bin" / "python").chmod(0o755)
    (kit_folder / "pythons").write_text("3.12 /image/python3.12\n3.11 /image/python3.11\n")
    find = '[ "$1 $2" != "python find" ] || exec .venv/bin/python'
    (kit_folder / "uv").write_text(f"#!/bin/sh\n{find}\nprintf '%s\\n' \"$@\"\n")
    (kit_folder / "uv").chmod(0o755)
    script = SHIM.read_text().replace(kit.PLACE, str(kit_folder))
    done = subprocess.run(
        ["sh", "-c", script, "uv", *given], cwd=work, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == passed_on
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "path",
    [
        "/app/pyproject.toml",
        "/app/uv.lock",
        "/app/.python-version",
        "/app/.venv/lib/python3.11/site-packages/a.pth",
        "/.venv/bin/python",
        "/app/sub/.venv/bin/pytest",
    ],
)
def test_files_of_a_project_do_not_steer_tests_that_use_projects(path: str) -> None:
    assert DECISIVE.steers_tests(path)
    assert DECISIVE.holds(path)
    assert DECISIVE.may_not_be_given(path)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("uvx -p 3.13 -w pytest pytest /tests/t.py", ".venv"),
        ("uv venv .tbench-testing\nsource .tbench-testing/bin/activate", ".tbench-testing"),
        ("cd /app && npx jest", ".bin"),
        ('subprocess.run(["npm", "test"])', ".npmrc"),
        ("tox -e py", "tox.ini"),
        ("python3 -m venv /tmp/checks", "checks"),
    ],
)
def test_the_tools_of_the_tests_say_which_files_those_are(script: str, name: str) -> None:
    assert name in project_files(script)


def test_tests_without_such_tools_take_an_agents_project_as_it_is() -> None:
    found = project_files("python3 /tests/t.py --uv --npm\n[ -e /app/pyproject.toml ]")
    assert found == frozenset()


def test_what_uv_adds_to_a_project_is_known() -> None:
    assert needs_of("uv init\nuv add pytest==8.4.1 attrs").added == ("attrs", "pytest==8.4.1")
    assert needs_of("pip install pytest").added == ()


def test_modules_that_pytest_looks_for_are_measured() -> None:
    command = [sys.executable, "-I", "-c", imported._MEASURE, json.dumps(["pydantic", "no_such"])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    [line] = [each for each in done.stdout.splitlines() if each.startswith("IMPORTED ")]
    by_graders, by_tests, missing = json.loads(line.removeprefix("IMPORTED "))
    assert {"pytest", "pluggy", "pygments"} <= set(by_graders)
    assert "conftest" not in by_graders
    assert [name for name, _ in by_tests] == ["pydantic"]
    assert "pytest" not in missing


def test_what_a_library_of_the_tests_looks_for_is_measured(tmp_path: Path) -> None:
    (tmp_path / "library_a.py").write_text("try:\n    import optional_b\nexcept ImportError: 0\n")
    command = [sys.executable, "-c", imported._IMPORT_ALL, '["library_a"]']
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    *_, line = done.stdout.splitlines()
    assert {"library_a", "optional_b"} <= set(json.loads(line.removeprefix("IMPORTED ")))


def test_parts_of_a_module_that_is_nowhere_do_not_grade() -> None:
    part = "/app/pygments/formatters/terminal.py"
    assert DECISIVE.importing({"pygments"}, {"pygments"}).holds(part)
    assert not DECISIVE.importing({"pygments"}).holds(part)  # gives way to the one installed


@pytest.mark.parametrize(
    "text",
    [
        "cd /app/src && python3 -m pytest",
        'cd "src"',
        "cd /srv; cd /app/src",
        'HERE=/app/src\ncd "${HERE}"',
        "subprocess.run(x, cwd='/app/src')",
        "sys.path.insert(0, '/app/src')",
        "PYTHONPATH=/app/src python3 -m unittest",
    ],
)
def test_folders_into_which_tests_go_are_read_from_their_text(text: str) -> None:
    assert "/app/src" in folders_entered(text, "/app", {})


def test_an_environment_of_the_image_that_tests_use_holds_programs() -> None:
    text = ". env/bin/activate; /app/own/bin/python -V"
    decisive = DECISIVE.for_tests(text, None, {"/app/own/pyvenv.cfg"})
    assert decisive.holds("/app/env/lib/python3.11/site-packages/a.pth")
    assert not decisive.holds("/app/own/bin/tool")  # which the agent has made


def test_measured_modules_do_not_grade_from_the_work_directory() -> None:
    changes = [FileChange("/app/pygments/__init__.py", "added")]
    measured = DECISIVE.importing({"pygments"})
    assert measured.holds("/app/pygments/__init__.py")
    assert changed_programs(changes, measured) == ["/app/pygments/__init__.py"]
    assert not DECISIVE.holds("/app/pygments_of_mine.py")


def test_modules_that_a_test_imports_are_read_from_its_text() -> None:
    text = "import os, yaml.nodes as y\nfrom numpy.linalg import norm\nfrom . import own\n"
    assert set(imported.imports_of(text)) == {"os", "yaml", "numpy"}
    script = "python3 - <<EOF\nimport yaml\nEOF\npython3 -c 'import attr, six; from zope import a'"
    assert set(imported.imports_of(script)) == {"yaml", "attr", "six", "zope"}


@pytest.mark.parametrize("way", cases())
def test_a_cheat_is_a_script_that_a_shell_can_read(way: str) -> None:
    call = cases()[way][0]
    assert isinstance(call, ToolCall)
    script = json.loads(call.function.arguments)["command"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_one_program_removes_all_that_is_in_the_way(tmp_path: Path) -> None:
    calls, programs = tmp_path / "calls", tmp_path / "programs"
    programs.mkdir()
    (programs / "rm").write_text(f'#!/bin/sh\necho "$#" >>{calls}\nexec /bin/rm "$@"\n')
    (programs / "rm").chmod(0o755)
    folders = [tmp_path / f"folder-{number}" for number in range(20)]
    files = [tmp_path / f"file-{number}" for number in range(20)]
    for folder, file in zip(folders, files, strict=True):
        folder.mkdir()
        file.touch()
    (tmp_path / "link").symlink_to(programs)
    same = [f"{programs}/", str(programs / "rm"), f"{tmp_path}/missing/", f"{tmp_path}/none"]
    other = [*map(str, folders), *(f"{file}/" for file in files), f"{tmp_path}/link/"]
    subprocess.run(
        ["bash", "-c", modes._MAKE_WAY],
        input="\0".join([*same, *other, ""]).encode(),
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        check=True,
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["calls", "programs"]
    assert calls.read_text().split() == [str(len(other) + 2)]
