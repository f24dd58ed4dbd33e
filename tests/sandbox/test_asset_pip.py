"""`$HQ_PIP` in asset builds: the slot's Python, the worker's index settings."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath

import pytest

from hermes_queue.errors import IsolationUnavailable
from hermes_queue.sandbox.base import AssetSpec, SlotSpec
from hermes_queue.sandbox.host import pip as pip_settings
from hermes_queue.sandbox.local import assets as asset_store


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


@pytest.fixture
def within_reach(wheel_directory, bench, monkeypatch):
    """Those wheels where the backend's builds can get them: Modal's do not see this disk."""
    with http_server(wheel_directory) as url:
        if bench.candidate.own_image:
            monkeypatch.setenv("PIP_FIND_LINKS", url)
        yield


@contextlib.contextmanager
def http_server(directory):
    """Files of a directory over HTTP on loopback, where builds with network reach it."""
    handler = functools.partial(QuietHandler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def mounts(backend_name, tmp_path, monkeypatch):
    """Where assets are mounted; without a fence this is a place on the host."""
    if backend_name == "local-unfenced":
        monkeypatch.setattr(asset_store, "MOUNT_ROOT", PurePosixPath(tmp_path))
        return str(tmp_path)
    return "/opt/assets"


async def test_a_venv_built_with_pip_runs_in_slots(mounts, bench, within_reach):
    key = secrets.token_hex(8)
    mount = f"{mounts}/venv-{key}"
    script = (
        f"python3 -m venv --without-pip {mount}\n"
        f"$HQ_PIP --python {mount}/bin/python install -q greeter\n"
    )
    spec = AssetSpec("venv", key, script, mount)
    slot = await bench.slot(SlotSpec(assets=(spec,)))
    assert await bench.out(slot, f"{mount}/bin/python -c 'import greeter'") == "hello"
    # The way to the packages is the builds' alone.
    assert "PIP_" not in await bench.out(slot, "env")


async def test_without_a_fence_slots_take_turns_at_a_mount(make_bench, tmp_path, monkeypatch):
    monkeypatch.setattr(asset_store, "MOUNT_ROOT", PurePosixPath(tmp_path))
    bench = await make_bench("local-unfenced", slots=2)
    mount = str(tmp_path / "a" / "b")
    stamp = "pwd >file; date +%s%N >>file"
    one, two = (AssetSpec("text", secrets.token_hex(8), stamp, mount) for _ in range(2))
    first = await bench.slot(SlotSpec(assets=(one,)))
    built = await bench.out(first, f"cat {mount}/file")
    assert built.startswith(f"{mount}\n")
    waiting = asyncio.create_task(bench.slot(SlotSpec(assets=(two,))))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    assert await bench.out(first, f"cat {mount}/file") == built
    await bench.backend.release(first)
    second = await waiting
    assert await bench.out(second, f"cat {mount}/file") != built
    await bench.backend.release(second)
    assert (await bench.backend.read_asset(one, "file")).decode().rstrip() == built


async def test_without_a_fence_foreign_files_at_a_mount_are_left_alone(
    make_bench, tmp_path, monkeypatch
):
    monkeypatch.setattr(asset_store, "MOUNT_ROOT", PurePosixPath(tmp_path))
    bench = await make_bench("local-unfenced", slots=1)
    (tmp_path / "mine").mkdir()
    spec = AssetSpec("text", secrets.token_hex(8), "true", str(tmp_path / "mine"))
    with pytest.raises(IsolationUnavailable, match=r"not one of our assets.*bwrap"):
        await bench.backend.prepare(SlotSpec(assets=(spec,)))


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
