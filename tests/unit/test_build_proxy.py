"""The proxy of asset builds: what it lets through, and what it bounds."""

from __future__ import annotations

import asyncio
import base64
import socket
from contextlib import asynccontextmanager

import pytest

from hermes_queue.errors import ConfigurationError
from hermes_queue.sandbox.builds import proxy as build_proxy
from hermes_queue.sandbox.builds.hosts import BuildHosts, HostRefused, is_public
from hermes_queue.sandbox.builds.proxy import BuildProxy, Malformed, parse
from hermes_queue.settings import check_environment


def index(url: str) -> dict[str, str]:
    return {"PIP_INDEX_URL": url}


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Server:
    """Keeps what it is sent, and answers `reply` to each head; then it echoes."""

    def __init__(self, reply: bytes = b"") -> None:
        self.reply = reply
        self.heads: list[bytes] = []
        self.rest = asyncio.Queue[bytes]()

    async def __call__(self, reader, writer) -> None:
        if self.reply:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.reply)
        while data := await reader.read(1000):
            self.rest.put_nowait(data)
            writer.write(data)
        writer.close()


@asynccontextmanager
async def listening(server: Server):
    running = await asyncio.start_server(server, "127.0.0.1", 0)
    try:
        yield running.sockets[0].getsockname()[1]
    finally:
        running.close()


@asynccontextmanager
async def proxied(hosts: BuildHosts):
    """(the proxy, a function that connects to it)."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    proxy = BuildProxy(hosts)
    proxy.serve(listener)
    opened = []

    async def connect(*lines: str):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(writer)
        writer.write("\r\n".join([*lines, "", ""]).encode())
        return reader, writer

    try:
        yield proxy, connect
    finally:
        for writer in opened:
            writer.close()
        await proxy.close()


async def test_a_tunnel_to_an_index_carries_bytes_both_ways() -> None:
    async with listening(Server()) as port:
        hosts = BuildHosts.of(index(f"https://localhost:{port}/simple"), "")
        async with proxied(hosts) as (_, connect):
            reader, writer = await connect(f"CONNECT localhost:{port} HTTP/1.1")
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.write_eof()
            assert await reader.read() == b""


async def test_nothing_follows_the_one_request_to_an_http_index() -> None:
    """A second one could be a POST, or speak to whatever else listens there."""
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
    async with listening(server) as port:
        async with proxied(BuildHosts.of(index(f"http://127.0.0.1:{port}/"), "")) as (_, connect):
            reader, writer = await connect(
                f"GET http://127.0.0.1:{port}/simple/ HTTP/1.1",
                "Proxy-Authorization: Basic x",
                "Content-Length: 99",
                "Accept: text/html",
            )
            writer.write(b"POST /upload HTTP/1.1\r\n\r\n")
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200 OK")
    [head] = server.heads
    assert head.split(b"\r\n")[0] == b"GET /simple/ HTTP/1.1"
    assert b"Accept: text/html" in head
    assert b"Proxy-" not in head
    assert b"Content-Length" not in head
    assert server.rest.empty()


async def test_what_is_no_index_is_refused_and_remembered_a_few_times_only() -> None:
    async with proxied(BuildHosts.of({}, "")) as (proxy, connect):
        for number in range(1, build_proxy.MOST_REFUSALS + 5):
            reader, _ = await connect(f"CONNECT 127.0.0.1:{number} HTTP/1.1")
            assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
    assert len(proxy.refusals) == build_proxy.MOST_REFUSALS
    assert "HERMES_QUEUE_LOCAL_BUILD_HOSTS=127.0.0.1:1" in next(iter(proxy.refusals))


@pytest.mark.parametrize(
    ("scheme", "host", "port"),
    [
        ("https", "pypi.org", 443),
        ("https", "files.pythonhosted.org", 443),
        ("http", "127.0.0.1", 3141),
        ("https", "links.example", 8443),
        ("https", "more.example", 443),
        ("http", "more.example", 80),
        ("https", "10.0.0.7", 9000),
    ],
)
def test_indexes_link_pages_and_named_hosts_may_be_reached(scheme, host, port) -> None:
    pip = {
        "PIP_EXTRA_INDEX_URL": "http://127.0.0.1:3141/root file:///srv/simple",
        "PIP_FIND_LINKS": "/srv/wheels https://u:p@LINKS.example:8443/x",
    }
    BuildHosts.of(pip, "more.example, 10.0.0.7:9000").check(scheme, host, port)


@pytest.mark.parametrize(
    ("scheme", "host", "port"),
    [
        ("https", "127.0.0.1", 3141),  # a tunnel could say anything to an http index
        ("http", "127.0.0.1", 6379),
        ("http", "pypi.org", 80),
        ("https", "evil.example", 443),
        ("https", "files.pythonhosted.org", 443),  # pypi.org is not asked here
    ],
)
def test_other_ports_other_ways_and_other_hosts_may_not(scheme, host, port) -> None:
    hosts = BuildHosts.of(index("http://127.0.0.1:3141/root"), "")
    with pytest.raises(HostRefused, match=host):
        hosts.check(scheme, host, port)


def test_no_index_means_none() -> None:
    with pytest.raises(HostRefused):
        BuildHosts.of({"PIP_NO_INDEX": "1"}, "").check("https", "pypi.org", 443)


async def test_a_host_that_is_only_implied_may_not_be_in_a_private_network() -> None:
    implied = BuildHosts.of({"PIP_TRUSTED_HOST": "localhost"}, "")
    implied.check("https", "localhost", 443)
    with pytest.raises(HostRefused, match="private address"):
        await implied.addresses("https", "localhost", 443)
    named = BuildHosts.of({}, "localhost")
    assert set(await named.addresses("https", "localhost", 443)) <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.31.0.1",
        "192.168.1.1",
        "100.100.100.200",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "2002:7f00:1::",
    ],
)
def test_own_neighbouring_and_metadata_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_addresses_of_the_internet_are_public() -> None:
    assert is_public("151.101.0.223")
    assert is_public("2a04:4e42::223")


@pytest.mark.parametrize(
    "line",
    [
        "POST http://h/ HTTP/1.1",
        "GET / HTTP/1.1",
        "GET https://h/ HTTP/1.1",
        "GET http://h:0/ HTTP/1.1",
        "GET http://h/a b HTTP/1.1",
        "CONNECT h HTTP/1.1",
        "CONNECT h:70000 HTTP/1.1",
        "CONNECT h:1 HTTP/2",
        "GET http://h/ HTTP/1.1\r\n continued",
        "GET http://h/ HTTP/1.1\r\nA: b\nHost: other",
        "nonsense",
    ],
)
def test_what_is_no_request_of_a_downloader_is_malformed(line: str) -> None:
    with pytest.raises(Malformed):
        parse(f"{line}\r\n\r\n".encode())


@pytest.mark.parametrize("tunnel", [True, False])
async def test_the_workers_own_proxy_is_taken_with_its_credentials(tunnel, monkeypatch) -> None:
    """It resolves the name: this one cannot be resolved here."""
    server = Server(b"HTTP/1.1 200 OK\r\n\r\n")
    async with listening(server) as port:
        monkeypatch.setenv("https_proxy", f"http://me:s%40fe@127.0.0.1:{port}")
        monkeypatch.setenv("http_proxy", f"http://me:s%40fe@127.0.0.1:{port}")
        scheme = "https" if tunnel else "http"
        hosts = BuildHosts.of(index(f"{scheme}://index.invalid/simple"), "")
        async with proxied(hosts) as (_, connect):
            asked = "CONNECT index.invalid:443" if tunnel else "GET http://index.invalid/simple"
            reader, _ = await connect(f"{asked} HTTP/1.1")
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    [head] = server.heads
    expected = b"CONNECT index.invalid:443 " if tunnel else b"GET http://index.invalid:80/simple "
    assert head.startswith(expected)
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:s@fe") in head


async def test_hosts_of_no_proxy_are_reached_without_the_workers_proxy(monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "index.example")
    hosts = BuildHosts.of({}, "")
    assert hosts.outer_proxy("http", "index.example", 80) is None
    assert hosts.outer_proxy("http", "other.example", 80) is not None


async def test_connections_beyond_the_cap_wait_until_one_ends(monkeypatch) -> None:
    monkeypatch.setattr(build_proxy, "MAX_CONNECTIONS", 2)
    async with listening(Server()) as port:
        hosts = BuildHosts.of(index(f"https://127.0.0.1:{port}/"), "")
        async with proxied(hosts) as (_, connect):
            first, second, third = [
                await connect(f"CONNECT 127.0.0.1:{port} HTTP/1.1") for _ in range(3)
            ]
            for reader, _ in (first, second):
                await reader.readuntil(b"\r\n\r\n")
            answer = asyncio.create_task(third[0].readuntil(b"\r\n\r\n"))
            first[1].write(b"x")
            await first[0].readexactly(1)
            assert not answer.done()
            second[1].write_eof()
            assert b" 200 " in await answer


@pytest.mark.parametrize("limit", ["HEAD_TIMEOUT_S", "IDLE_TIMEOUT_S", "MAX_HEAD_BYTES"])
async def test_who_says_nothing_or_too_much_is_left(limit, monkeypatch) -> None:
    monkeypatch.setattr(build_proxy, limit, 100 if limit == "MAX_HEAD_BYTES" else 0.2)
    async with listening(Server()) as port:
        hosts = BuildHosts.of(index(f"https://127.0.0.1:{port}/"), "")
        async with proxied(hosts) as (_, connect):
            if limit == "IDLE_TIMEOUT_S":
                reader, _ = await connect(f"CONNECT 127.0.0.1:{port} HTTP/1.1")
                await reader.readuntil(b"\r\n\r\n")
            else:
                reader, writer = await connect()
                writer.write(b"A" * 1000)
            try:
                answer = await reader.read()
            except ConnectionError:
                answer = b""
    assert b" 200 " not in answer


def test_a_build_host_with_a_scheme_is_a_wrong_setting(monkeypatch) -> None:
    monkeypatch.setenv("HERMES_QUEUE_LOCAL_BUILD_HOSTS", "https://files.example/")
    with pytest.raises(ConfigurationError, match="give no scheme"):
        check_environment()
