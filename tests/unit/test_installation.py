"""The name-clash guard, against a real foreign distribution."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from hermes_queue.errors import ConfigurationError
from hermes_queue.installation import check_installation, shadows

ROOT = Path(__file__).parents[2]


@pytest.fixture
def foreign_envs(tmp_path: Path) -> Path:
    """A directory as pip leaves it with a distribution that owns `envs`, as one on PyPI does."""
    target = tmp_path / "site"
    facts = target / "envs-1.4.dist-info"
    for directory in (target / "envs", facts):
        directory.mkdir(parents=True)
    (target / "envs" / "__init__.py").touch()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: envs\nVersion: 1.4\n")
    (facts / "INSTALLER").write_text("pip\n")
    recorded = ["METADATA", "INSTALLER", "RECORD"]
    lines = ["envs/__init__.py,,", *(f"{facts.name}/{name},," for name in recorded)]
    (facts / "RECORD").write_text("\n".join(lines) + "\n")
    return target


def test_our_own_installation_passes() -> None:
    check_installation()


def test_only_metadata_of_owners_is_parsed_where_one_of_our_packages_is(
    foreign_envs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (foreign_envs, tmp_path / "elsewhere"):
        facts = place / "other-1.0.dist-info"
        facts.mkdir(parents=True)
        (facts / "RECORD").write_text("other/__init__.py,,\n")
    read: list[str] = []
    read_text = PathDistribution.read_text

    def noted(self: PathDistribution, filename: str) -> str | None:
        read.append(filename)
        return read_text(self, filename)

    monkeypatch.setattr(PathDistribution, "read_text", noted)
    monkeypatch.setattr(sys, "path", [str(foreign_envs), str(tmp_path / "elsewhere")])
    with pytest.raises(ConfigurationError, match="'envs'"):
        check_installation()
    assert read.count("RECORD") <= 2
    assert read.count("METADATA") == 1


def test_producer_names_the_foreign_distribution_and_the_fix(foreign_envs: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "producers.swe_smith", "--items", "2"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(foreign_envs)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2, result.stderr
    assert "'envs'" in result.stderr
    assert "pip uninstall -y envs" in result.stderr
    assert "Traceback" not in result.stderr


def test_worker_refuses_to_start_beside_a_foreign_distribution(foreign_envs: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "hermes_queue", "worker"],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": str(foreign_envs), "HERMES_QUEUE_REDIS_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert "pip uninstall -y envs" in result.stderr + result.stdout


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("producers.swe_smith", ["--items", "2"]), ("celery", ["-A", "hermes_queue", "worker"])],
)
def test_foreign_package_that_hides_ours_is_named_before_its_import_fails(
    foreign_envs: Path, tmp_path: Path, module: str, arguments: list[str]
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=tmp_path,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(foreign_envs), str(ROOT)]),
            "HERMES_QUEUE_REDIS_URL": "redis://127.0.0.1:1/0",
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2, result.stderr
    assert "pip uninstall -y envs" in result.stderr + result.stdout


def test_without_extras_the_command_names_the_one_to_install():
    code = "import sys; sys.modules['click'] = None; import hermes_queue.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: commands need click: pip install 'hermes-queue[producer]'\n"


NAMES = ("envs", "workers", "producers")


@pytest.fixture(params=["packages", "folders"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A working directory with others' packages or folders of our names."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        if request.param == "packages":
            (tmp_path / name / "__init__.py").touch()
    return tmp_path


def run(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python there, with ours as installed: searched after the working directory."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=repository,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HERMES_QUEUE_REDIS_URL": "redis://127.0.0.1:1",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_our_commands_find_ours_beside_others_of_the_same_names(repository: Path) -> None:
    done = run(repository, "-m", "hermes_queue.cli", "play", "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_worker_finds_ours_beside_others_of_the_same_names(repository: Path) -> None:
    done = run(repository, "-m", "celery", "-A", "hermes_queue", "worker")
    assert "Redis at redis://127.0.0.1:1" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_producer_finds_ours_beside_others_of_the_same_names(repository: Path) -> None:
    done = run(repository, "-P", "-m", "producers.gsm8k", "--items", "1", "--dry-run")
    assert done.returncode == 0, done.stderr


def test_a_producer_finds_our_envs_beside_others(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/__init__.py").touch()
    done = run(tmp_path, "-m", "producers.gsm8k", "--items", "1", "--dry-run")
    assert done.returncode == 0, done.stderr


def test_what_hides_ours_from_scripts_is_named(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    assert shadows(tmp_path) == []
    (tmp_path / "workers/__init__.py").touch()
    assert shadows(tmp_path) == [tmp_path / "workers/__init__.py"]
