"""The stream of events, and how the server ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from http.client import HTTPResponse

import pytest
from view_server import OPERATE_TOKEN, VIEW_TOKEN, ViewServer

from hermes_plugins.view import app, serving
from hermes_plugins.view.routes import live
from hermes_plugins.view.site import ViewSite
from hermes_plugins.view.tokens import Keys

pytestmark = pytest.mark.xdist_group("view")


@contextmanager
def stream(server: ViewServer) -> Iterator[HTTPResponse]:
    """An open stream, closed with the block."""
    with closing(server.connect()) as connection:
        connection.request("GET", "/api/events", headers={"Authorization": f"Bearer {VIEW_TOKEN}"})
        with connection.getresponse() as answer:
            yield answer


def lines_of(answer, count: int) -> list[str]:
    return [answer.readline().decode().rstrip("\n") for _ in range(count)]


def test_a_stream_begins_with_the_whole_and_goes_on_with_changes(server):
    with stream(server) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert lines_of(answer, 6) == [
            "retry: 2000", "", "id: 1", "event: overview", 'data: {"leased":1}', "",
        ]  # fmt: skip
        for tell in list(server.site.live.listeners):
            tell("change", {"leased": "two\nlines"})
        assert lines_of(answer, 3) == ["id: 2", "event: change", 'data: {"leased":"two\\nlines"}']
    while server.site.streams:  # a reader that left is noticed
        for tell in list(server.site.live.listeners):
            tell("change", {})
        time.sleep(0.01)
    assert server.site.live.listeners == []


def test_a_reader_that_does_not_read_is_left_behind(server):
    with stream(server) as answer:
        lines_of(answer, 6)
        [tell] = server.site.live.listeners
        for _ in range(5000):
            tell("change", {"x": "y" * 1000})
        while server.site.streams:
            time.sleep(0.01)
    assert server.site.live.listeners == []


def test_head_of_a_stream_ends(server):
    said = server.get("/api/events", method="HEAD")
    assert (said.status, said.body) == (200, b"")
    assert said.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert server.site.streams == 0


def test_readers_beyond_the_most_are_sent_away(server, monkeypatch):
    monkeypatch.setattr(live, "STREAMS_MAX", 1)
    with stream(server) as answer:
        lines_of(answer, 6)
        assert server.get("/api/events").status == 503


def test_readers_who_come_at_the_same_moment_are_no_more_than_the_most(server, monkeypatch):
    monkeypatch.setattr(live, "STREAMS_MAX", 2)
    admitted = threading.Barrier(3)
    answer_events = live.events

    def together(call):
        response = answer_events(call)
        admitted.wait(20)
        return response

    site = replace(server.site, live=type(server.site.live)())
    with closing(ViewServer(site, [app.Route("GET", "/api/test/events", together)])) as served:
        connections = [served.connect() for _ in range(3)]
        for each in connections:
            headers = {"Authorization": f"Bearer {VIEW_TOKEN}"}
            each.request("GET", "/api/test/events", headers=headers)
        first = sorted(each.getresponse().readline() for each in connections)
        for each in connections:
            each.close()
    assert first == [b"retry: 10000\n", b"retry: 2000\n", b"retry: 2000\n"]


@pytest.fixture
def own(server):
    """A server of the test's own, which it may end."""
    site = ViewSite(
        keys=Keys({"view": VIEW_TOKEN, "operate": OPERATE_TOKEN}),
        cookie="hq_view",
        deployment="",
        version="",
        assets=server.site.assets,
        index=server.site.index,
        live=type(server.site.live)(),
    )
    return lambda *routes: ViewServer(site, routes)


def test_the_server_ends_by_itself_though_a_stream_is_open(own, monkeypatch, caplog):
    assert serving.ENDING_S == 2
    monkeypatch.setattr(serving, "ENDING_S", 60)  # it does not need them
    served = own()
    with stream(served) as answer:
        lines_of(answer, 6)
        served.close()
        assert answer.read() == b""
    assert served.site.live.listeners == []
    assert "Cancel" not in caplog.text


@pytest.mark.parametrize(
    ("requests", "begun"), [(0, b""), (0, b"GET / HTTP/1.1\r\nHost: "), (1, b"GET / HTTP")]
)
def test_a_sender_that_takes_his_time_is_cut_off(own, monkeypatch, requests, begun):
    monkeypatch.setattr(serving, "HEADERS_S", 0.2)
    served = own()
    try:
        with socket.create_connection((served.host, served.port), timeout=20) as raw:
            for _ in range(requests):
                head = f"HEAD /api/session HTTP/1.1\r\nHost: {served.authority}\r\n\r\n"
                raw.sendall(head.encode())
                assert raw.recv(4096).startswith(b"HTTP/1.1 200")
            raw.sendall(begun)
            assert raw.recv(4096) == b""
    finally:
        served.close()


def test_a_body_that_does_not_come_is_not_waited_for(own, monkeypatch):
    monkeypatch.setattr(app, "BODY_S", 0.05)
    served = own()
    try:
        headers = [("Content-Type", "application/json"), ("X-HQ-Request", "1")]
        headers.append(("Content-Length", "10"))
        assert served.ask("/api/login", method="POST", headers=headers).status == 408
    finally:
        served.close()


CHANGE = "POST /api/reviews HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"


def test_a_refused_body_that_trickles_does_not_hold_its_connection(own, monkeypatch):
    monkeypatch.setattr(serving, "BODY_S", 0.2)
    served = own()
    try:
        with socket.create_connection((served.host, served.port), timeout=0.02) as raw:
            raw.sendall((CHANGE.format(served.authority) + "Content-Length: 9999\r\n\r\n").encode())
            until = time.monotonic() + 20
            with suppress(ConnectionError):
                while time.monotonic() < until:
                    raw.sendall(b" ")
                    with suppress(TimeoutError):
                        if raw.recv(4096) == b"":
                            break
            assert time.monotonic() < until
    finally:
        served.close()


def test_what_no_request_is_behind_an_answer_ends_the_connection_without_a_fault(own, caplog):
    served = own()
    try:
        with socket.create_connection((served.host, served.port), timeout=20) as raw:
            head = CHANGE.format(served.authority) + "Transfer-Encoding: chunked\r\n\r\n"
            raw.sendall(head.encode())
            assert raw.recv(4096).startswith(b"HTTP/1.1 403 ")
            raw.sendall(b"this is no chunk\r\n")
            while raw.recv(4096):
                pass
    finally:
        served.close()
    assert "Fatal" not in caplog.text


def test_a_reader_who_stops_reading_is_let_go_and_nothing_piles_up_for_him(own, monkeypatch):
    monkeypatch.setattr(serving, "STALLED_S", 0.1)
    served = own()
    try:
        with stream(served) as answer:
            lines_of(answer, 6)
            [tell] = served.site.live.listeners
            until = time.monotonic() + 20
            for _ in range(5):
                tell("change", "y" * 3_000_000)
            while served.site.streams and time.monotonic() < until:
                time.sleep(0.01)
            assert served.site.streams == 0
    finally:
        served.close()


def test_a_request_that_outlasts_the_server_is_answered_and_no_fault(own, monkeypatch, caplog):
    monkeypatch.setattr(serving, "ENDING_S", 0.1)
    go, running = threading.Event(), threading.Event()

    def waits(call):
        running.set()
        go.wait(20)
        return call.json(True)

    served = own(app.Route("GET", "/api/test/waits", waits))
    answers = []
    asked = threading.Thread(target=lambda: answers.append(served.get("/api/test/waits")))
    asked.start()
    assert running.wait(20)
    served.close()
    asked.join()
    go.set()
    [said] = answers
    assert (said.status, said.json["error"]) == (503, "the server ends")
    assert said.headers["x-content-type-options"] == "nosniff"
    assert "Traceback" not in caplog.text


def test_connections_beyond_the_most_are_closed_those_first_that_ask_for_nothing(own, monkeypatch):
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 1)
    served = own()
    try:
        with socket.create_connection((served.host, served.port), timeout=20) as idle:
            assert served.get("/api/session").status == 200
            with suppress(ConnectionError):
                assert idle.recv(1) == b""
        with stream(served) as answer:
            lines_of(answer, 6)
            with socket.create_connection((served.host, served.port), timeout=20) as second:
                with suppress(ConnectionError):
                    assert second.recv(1) == b""
    finally:
        served.close()


def test_requests_that_wait_for_redis_leave_room_for_those_that_do_not(own):
    go = threading.Event()

    def waits(call):
        go.wait(20)
        return call.json(True)

    served = own(app.Route("GET", "/api/test/waits", waits, asks_redis=True))
    asked = [
        threading.Thread(target=served.get, args=("/api/test/waits",)) for _ in range(app.AT_ONCE)
    ]
    try:
        for thread in asked:
            thread.start()
        assert [served.get("/api/trajectories").status for _ in asked] == [200] * app.AT_ONCE
    finally:
        go.set()
        for thread in asked:
            thread.join()
        served.close()


@pytest.mark.parametrize(("wait_s", "waiting_max"), [(0.05, 64), (20, 0)])
def test_a_request_too_many_is_told_to_come_again(own, monkeypatch, wait_s, waiting_max):
    monkeypatch.setattr(app, "WAIT_S", wait_s)
    monkeypatch.setattr(app, "WAITING_MAX", 64)
    go, running = threading.Event(), threading.Semaphore(0)

    def waits(call):
        running.release()
        go.wait(20)
        return call.json(True)

    served = own(app.Route("GET", "/api/test/waits", waits))
    answers: list[int] = []
    asked = [
        threading.Thread(target=lambda: answers.append(served.get("/api/test/waits").status))
        for _ in range(app.AT_ONCE)
    ]
    try:
        for thread in asked:
            thread.start()
        for _ in asked:
            assert running.acquire(timeout=20)
        monkeypatch.setattr(app, "WAITING_MAX", waiting_max)
        said = served.get("/api/test/waits")
        assert (said.status, said.headers["retry-after"]) == (503, "1")
        assert served.get("/api/session").status == 200  # a login never waits
    finally:
        go.set()
        for thread in asked:
            thread.join()
        served.close()
    assert answers == [200] * app.AT_ONCE
