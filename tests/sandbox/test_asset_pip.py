"""`$HQ_PIP` in asset builds: the slot's Python, the worker's index settings."""

from __future__ import annotations

import secrets
import zipfile

import pytest

from hermes_queue.sandbox import pip_settings
from hermes_queue.sandbox.base import AssetSpec, SlotSpec


@pytest.fixture
def wheel_directory(cache, monkeypatch):
    """Find-links with one wheel, as the worker's only package source."""
    directory = cache / f"wheels-{secrets.token_hex(4)}"
    directory.mkdir()
    with zipfile.ZipFile(directory / "greeter-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("greeter.py", "print('hello')\n")
        wheel.writestr(
            "greeter-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n"
        )
        wheel.writestr(
            "greeter-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("greeter-1.0.dist-info/RECORD", "")
    directory.chmod(0o755)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", directory.as_uri())
    pip_settings.prepare.cache_clear()
    yield directory
    pip_settings.prepare.cache_clear()


async def test_a_venv_built_with_pip_runs_in_slots(bench, wheel_directory):
    key = secrets.token_hex(8)
    mount = f"/opt/assets/venv-{key}"
    script = (
        f"python3 -m venv --without-pip {mount}\n"
        f"$HQ_PIP --python {mount}/bin/python install -q greeter\n"
        'test -z "$(ls -A ~ | grep -v -x .cache)"\n'
    )
    spec = AssetSpec("venv", key, script, mount)
    slot = await bench.slot(SlotSpec(assets=(spec,)))
    assert await bench.out(slot, f"{mount}/bin/python -c 'import greeter'") == "hello"
    # The way to the packages is the builds' alone.
    assert "PIP_" not in await bench.out(slot, "env")


def test_index_settings_of_the_environment_win_and_paths_are_found(wheel_directory, cache):
    settings = pip_settings.prepare(cache)
    environment = dict(settings.environment)
    assert environment["PIP_FIND_LINKS"] == wheel_directory.as_uri()
    assert environment["PIP_NO_INDEX"] == "1"
    assert wheel_directory in settings.readable
    assert (settings.package / "pip" / "__init__.py").is_file()


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ("https://pypi.org/simple", []),
        ("file:///etc/ssl/simple", []),
        ("/etc/ssl file:///etc/apt", ["/etc/ssl", "/etc/apt"]),
        ("/usr/share /", []),
        ("1", []),
    ],
)
def test_only_existing_host_paths_are_shown_to_builds(value, paths):
    assert [str(path) for path in pip_settings._host_paths(value)] == paths
