"""Builds of assets reach the worker's package indexes, and nothing else of the network."""

from __future__ import annotations

import functools
import secrets
import socket
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hermes_queue.errors import EnvInfraError
from hermes_queue.sandbox.base import AssetSpec, SlotSpec
from hermes_queue.sandbox.host import pip as pip_settings

REACH_OUT = """
import os, socket
found = []
for family, address in (
    (socket.AF_INET, ("127.0.0.1", {port})),
    (socket.AF_INET, ("169.254.169.254", 80)),
    (socket.AF_INET, ("{own}", {port})),
    (socket.AF_UNIX, "\\0{abstract}"),
):
    try:
        with socket.socket(family) as attempt:
            attempt.settimeout(5)
            attempt.connect(address)
            found.append(address)
    except OSError:
        pass
print(found, sorted(os.listdir("/sys/class/net") if os.path.isdir("/sys/class/net") else []))
"""


def asset(script: str) -> AssetSpec:
    return AssetSpec("text", secrets.token_hex(8), script, "/opt/assets/t")


@pytest.fixture
async def backend(make_bench, monkeypatch):
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_RETRIES", "0")
    pip_settings.prepare.cache_clear()
    yield (await make_bench("local", slots=1)).backend
    pip_settings.prepare.cache_clear()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def pages(directory):
    """Files over HTTP on loopback; gives host:port."""
    handler = functools.partial(Quiet, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_a_build_reaches_no_loopback_no_neighbour_and_no_abstract_socket_of_the_host(backend):
    name = f"hq-test-{secrets.token_hex(6)}"
    with socket.create_server(("", 0)) as server, socket.socket(socket.AF_UNIX) as hidden:
        hidden.bind(f"\0{name}")
        hidden.listen()
        own = socket.gethostbyname(socket.gethostname())
        code = REACH_OUT.format(port=server.getsockname()[1], own=own, abstract=name)
        spec = asset(f"python3 - >said <<'END'\n{code}END\n")
        await backend.prepare(SlotSpec(assets=(spec,)))
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (await backend.read_asset(spec, "said")).startswith(b"[]")


async def test_a_build_reaches_an_index_on_loopback_and_is_told_of_what_it_may_not(
    backend, tmp_path, monkeypatch
):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "note").write_text("from the index")
    fetch = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://{}/note\").read())'"
    with pages(tmp_path / "wheels") as index, pages(tmp_path / "wheels") as other:
        monkeypatch.setenv("PIP_FIND_LINKS", f"http://{index}/")
        pip_settings.prepare.cache_clear()
        got = asset(f"{fetch.format(index)} >said")
        await backend.prepare(SlotSpec(assets=(got,)))
        assert b"from the index" in await backend.read_asset(got, "said")
        with pytest.raises(EnvInfraError) as refused:
            await backend.prepare(SlotSpec(assets=(asset(fetch.format(other)),)))
    assert f"tried to reach {other}" in str(refused.value)
    assert f"HERMES_QUEUE_LOCAL_BUILD_HOSTS={other}" in str(refused.value)
