"""The names under which the viewer's server may be asked."""

from __future__ import annotations

import pytest

from hermes_plugins.view.guard import Authority, HostNames, allowed_host

LOOPBACK = HostNames.of("127.0.0.1", 9820)
IPV6 = HostNames.of("::1", 9820)
SOCKET = HostNames.of("", 9820)
NAMED = HostNames.of("10.0.0.5", 9820, name="Trainer-1")
BEHIND_A_PROXY = HostNames.of("0.0.0.0", 9820, [allowed_host("hq.example"), allowed_host("x:81")])


@pytest.mark.parametrize(
    ("names", "host", "schemes"),
    [
        (LOOPBACK, "127.0.0.1:9820", "http"),
        (LOOPBACK, "LocalHost:9820", "http"),
        (LOOPBACK, "127.0.0.1", ""),
        (LOOPBACK, "127.0.0.2:9820", ""),
        (LOOPBACK, "[::1]:9820", ""),
        (LOOPBACK, "hq.example:9820", ""),
        (IPV6, "[::1]:9820", "http"),
        (IPV6, "[0:0:0:0:0:0:0:1]:9820", "http"),
        (IPV6, "[0000::0001]:9820", "http"),
        (IPV6, "localhost:9820", "http"),
        (IPV6, "::1:9820", ""),
        (IPV6, "[::1]", ""),
        (IPV6, "[::1]9820", ""),
        (IPV6, "[::1%lo]:9820", ""),
        (IPV6, "[::2]:9820", ""),
        (IPV6, "127.0.0.1:9820", ""),
        (SOCKET, "localhost", "http"),
        (SOCKET, "localhost:9820", "http"),
        (SOCKET, "127.0.0.1:9820", "http"),
        (SOCKET, "localhost:9999", ""),
        (NAMED, "trainer-1:9820", "http"),
        (NAMED, "10.0.0.5:9820", "http"),
        (NAMED, "localhost:9820", ""),
        (BEHIND_A_PROXY, "hq.example", "http https"),
        (BEHIND_A_PROXY, "hq.example:443", "http https"),
        (BEHIND_A_PROXY, "hq.example:9820", "http https"),
        (BEHIND_A_PROXY, "hq.example:444", ""),
        (BEHIND_A_PROXY, "0.0.0.0:9820", ""),
        (BEHIND_A_PROXY, "localhost:9820", ""),
        (HostNames.of("::", 9820), "[::]:9820", ""),
        (BEHIND_A_PROXY, "x:81", "http https"),
        (BEHIND_A_PROXY, "x", ""),
        (BEHIND_A_PROXY, "a.hq.example", ""),
        (BEHIND_A_PROXY, "hq.example.", ""),
    ],
)
def test_a_name_is_ours_or_not(names: HostNames, host: str, schemes: str) -> None:
    authority = Authority.of(host)
    found = names.schemes(authority) if authority else ()
    assert " ".join(found) == schemes


def test_a_server_at_the_default_port_may_be_asked_without_it() -> None:
    names = HostNames.of("127.0.0.1", 80)
    assert names.schemes(Authority("127.0.0.1", None)) == ("http",)


@pytest.mark.parametrize(
    "text",
    ["", ":", ":80", "a b", "a,b", "a:b", "a:123456", "a:\uff11", "é",
     "a/b", "a@b", "[", "[]", "[::1",
     "-a", "a-", "a" * 300, "a\0", "[::1]:", "a:"],
)  # fmt: skip
def test_what_is_no_name_is_none(text: str) -> None:
    assert Authority.of(text) is None
