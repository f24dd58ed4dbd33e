"""What pinned files say of a package, and the metadata made of it; nothing is run."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

from envs.swe.item import DistributionFields, GitSource, SdistSource, SuiteRuntime
from envs.swe.package.distribution import Distribution, describe
from envs.swe.package.project import Project, parse_project
from envs.swe.repository import Repository
from hermes_queue.errors import EnvBug

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
PEP_621 = """
[project]
name = "Some_Package"
description = "Clamps"
dynamic = ["version"]
dependencies = ["a>=1"]
scripts = {some = "pkg.cli:main"}
[project.optional-dependencies]
tests = ["b; python_version > '3'"]
[project.entry-points.pytest11]
some = "pkg.plugin"
[project.entry-points."some.plugins"]
one = "pkg.one:One"
"""


async def described(
    tmp_path: Path, files: dict[str, str], *, version: object = None, **runtime: Any
) -> Distribution | None:
    """The metadata made of a git tree with these files."""
    repository = await Repository.create(tmp_path / "r.git")
    await repository.git("hash-object", "-w", "-t", "tree", "/dev/null")
    tree = await repository.replace(EMPTY_TREE, {k: v.encode() for k, v in files.items()})
    return await describe(repository, tree, SuiteRuntime(**runtime), GitSource(), version)


def written(distribution: Distribution, directory: Path) -> Path:
    """Write the files as the slot gets them."""
    home = directory / distribution.directory
    home.mkdir(parents=True)
    for name, text in distribution.files().items():
        (home / name).write_text(text)
    return directory


async def test_pythons_own_reader_finds_what_was_made(tmp_path: Path) -> None:
    files = {"pyproject.toml": PEP_621, "src/pkg/__init__.py": '__version__ = "2.1b3"\n'}
    made = await described(tmp_path, files)
    assert made is not None
    path = str(written(made, tmp_path / "site"))
    [found] = importlib.metadata.distributions(name="some-package", path=[path])
    assert (found.version, found.metadata["Name"]) == ("2.1b3", "Some_Package")
    assert found.metadata["Summary"] == "Clamps"
    assert found.requires == ["a>=1", "b; (python_version > '3') and extra == \"tests\""]
    assert [file.name for file in found.files or ()].count("METADATA") == 1
    assert (found.read_text("top_level.txt") or "").split() == ["pkg"]
    [plugin] = found.entry_points.select(group="some.plugins")
    assert (plugin.name, plugin.value) == ("one", "pkg.one:One")
    [script] = found.entry_points.select(group="console_scripts")
    assert script.value == "pkg.cli:main"


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"PKG-INFO": "Metadata-Version: 2.1\nName: p\nVersion: 1.5\n"}, id="PKG-INFO"),
        pytest.param({"pyproject.toml": '[project]\nname="p"\nversion="1.5"\n'}, id="PEP 621"),
        pytest.param({"pyproject.toml": '[tool.poetry]\nname="p"\nversion="1.5"\n'}, id="Poetry"),
        pytest.param(
            {
                "pyproject.toml": '[tool.flit.metadata]\nmodule="p"\n',
                "p.py": '"""P."""\n__version__ = "1.5"\n',
            },
            id="Flit",
        ),
        pytest.param(
            {
                "pyproject.toml": '[project]\nname="p"\ndynamic=["version"]\n'
                '[tool.setuptools.dynamic]\nversion={attr="q.about.VERSION"}\n',
                "src/q/about.py": "VERSION: str = '1.5'\n",
            },
            id="setuptools attr",
        ),
        pytest.param(
            {
                "pyproject.toml": '[project]\nname="p"\n[tool.hatch.version]\npath="x/v.py"\n',
                "x/v.py": "import os\n__version__ = '1.5'\nx = os.environ\n",
            },
            id="Hatch path",
        ),
        pytest.param(
            {
                "pyproject.toml": '[project]\nname="p"\ndynamic=["version"]\n'
                "[tool.setuptools_scm]\n",
                "p/__init__.py": "from p._version import version\n",
                "p/_version.py": "version = '1.5'\n",
            },
            id="the file that setuptools_scm wrote",
        ),
        pytest.param({"setup.cfg": "[metadata]\nname = p\nversion = 1.5\n"}, id="setup.cfg"),
        pytest.param(
            {"setup.cfg": "[metadata]\nname=p\nversion=file: V.txt\n", "V.txt": "1.5\n"},
            id="setup.cfg file",
        ),
        pytest.param(
            {"setup.cfg": "[metadata]\nname=p\nversion=attr: p.V\n", "p.py": "V = (1, 5)\n"},
            id="setup.cfg attr",
        ),
        pytest.param(
            {"setup.py": "from setuptools import setup\nV = '1.5'\nsetup(name='p', version=V)\n"},
            id="setup.py",
        ),
        pytest.param(
            {
                "setup.py": "import setuptools\nsetuptools.setup(name='p', version=find())\n",
                "p/__init__.py": "__version__ = '1.5'\n",
            },
            id="setup.py that reads its version",
        ),
    ],
)
async def test_name_and_version_are_read_from(tmp_path: Path, files: dict[str, str]) -> None:
    made = await described(tmp_path, files, version="9")
    assert made is not None
    assert (made.name, made.version) == ("p", "1.5")


SCM = '[project]\nname = "p"\ndynamic = ["version"]\n[tool.hatch.version]\nsource = "vcs"\n'


@pytest.mark.parametrize(
    ("column", "version"), [("4.2", "4.2"), (None, "0.0.0"), (7, "0.0.0"), ("a b", "0.0.0")]
)
async def test_a_version_that_only_code_tells_is_the_rows_or_zero(
    tmp_path: Path, column: object, version: str
) -> None:
    made = await described(tmp_path, {"pyproject.toml": SCM}, version=column)
    assert made is not None
    assert made.version == version


async def test_what_the_row_says_wins_over_the_files(tmp_path: Path) -> None:
    own = {"name": "other", "version": "3", "entry_points": {"g": {"n": "m:a"}}}
    made = await described(tmp_path, {"pyproject.toml": PEP_621}, distribution=own)
    assert made is not None
    assert (made.name, made.version, made.entry_points) == ("other", "3", {"g": {"n": "m:a"}})


async def test_an_sdist_is_known_by_its_pin(tmp_path: Path) -> None:
    repository = await Repository.create(tmp_path / "r.git")
    tree = await repository.replace(
        (await repository.git("hash-object", "-w", "-t", "tree", "/dev/null")).decode().strip(),
        {
            "PKG-INFO": b"Name: p\nVersion: 1\n",
            "src/p.egg-info/entry_points.txt": b"[pytest11]\np = p.plugin:Plugin\n",
        },
    )
    source = SdistSource(
        type="sdist", name="p", version="1.0", filename="p-1.0.tar.gz", sha256="0" * 64
    )
    made = await describe(repository, tree, SuiteRuntime(), source)
    assert made is not None
    assert (made.name, made.version) == ("p", "1")
    assert made.entry_points == {"pytest11": {"p": "p.plugin:Plugin"}}


async def test_a_repository_without_a_name_has_no_metadata(tmp_path: Path) -> None:
    assert await described(tmp_path, {"core.py": "x = 1\n"}) is None


async def test_the_name_in_the_pinned_files_is_not_installed_either(tmp_path: Path) -> None:
    with pytest.raises(EnvBug, match=r"environment.requirements: 'some.package==1'"):
        await described(
            tmp_path, {"pyproject.toml": PEP_621}, requirements=("pytest==8.4.2", "some.package==1")
        )


def test_entry_points_of_setup_py_are_lists_or_text() -> None:
    listed = "setup(name='p', entry_points={'g': ['a = m:f', f'{x}=1'], 'h': call()})"
    text = "setup(name='p', entry_points='''\n[g]\na = m:f\n''')"
    points = [parse_project({"setup.py": code}).entry_points for code in (listed, text)]
    assert points == [{}, {"g": {"a": "m:f"}}]
    plain = "P = ['a = m:f']\nsetup(name='p', entry_points={'g': P + ['b=m'], 'h': call()})"
    assert parse_project({"setup.py": plain}).entry_points == {"g": {"a": "m:f", "b": "m"}}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        'a = """',
        "setup(" * 5_000,
        "setup(version=" + "-" * 50_000 + "1)",
        "[metadata]\nname = a\n b\x00\n[metadata",
        '[project]\nname = 3\nversion = []\ndynamic = 1\nscripts = "x"\n[tool]\npoetry = 1\n',
        "setup(name=['x'], version=1, entry_points=3, install_requires={'a': 1}, **{1: 2})",
        "Name: a b\nVersion: 1\u2028Summary: x\n",
    ],
)
def test_hostile_files_say_nothing(text: str) -> None:
    for name in ("PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py"):
        found = parse_project({name: text})
        assert (found.name, found.entry_points) == ("", {})


def test_nothing_is_executed(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'ran')!r}, 'w')\nsetup(name='p', version=open('x').read())"
    assert parse_project({"setup.py": code}) == Project(name="p")
    assert not (tmp_path / "ran").exists()


async def test_a_file_cannot_add_fields_or_grow_the_metadata(tmp_path: Path) -> None:
    many = "".join(f'"d{number}",' for number in range(20_000))
    text = f'[project]\nname="p"\nversion="1"\ndescription="a\\nName: q"\ndependencies=[{many}]\n'
    made = await described(tmp_path, {"pyproject.toml": text})
    assert made is not None
    metadata = made.files()["METADATA"]
    assert metadata.count("\nName: ") == 1
    assert len(metadata) < 100_000


def test_poetrys_bounds_are_the_standards() -> None:
    text = """
[tool.poetry]
name = "p"
[tool.poetry.dependencies]
python = "^3.9"
a = "^1.2.3"
b = "~1.2"
c = {version = "^0.3", extras = ["x"]}
d = {version = "1", optional = true}
e = "*"
f = ">=1,<3"
[tool.poetry.group.dev.dependencies]
pytest = "^8"
"""
    found = parse_project({"pyproject.toml": text})
    assert found.dependencies == ("a>=1.2.3,<2", "b>=1.2,<1.3", "c[x]>=0.3,<0.4", "e", "f>=1,<3")
    assert found.groups == {"dev": ("pytest>=8,<9",)}


def test_a_row_names_entry_points_in_one_form_only() -> None:
    with pytest.raises(ValueError, match="entry_points must have the form"):
        DistributionFields(entry_points={"g": {"n": "not an\nentry"}})
