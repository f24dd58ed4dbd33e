"""What a hostile client can make the Atropos API server do: very little."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_plugins.atropos_server import http
from hermes_plugins.atropos_server.batches import Durability, ProgressFile, TrainerProgress
from hermes_plugins.atropos_server.http import (
    Handlers,
    HttpServer,
    TrainerAnswer,
    TrainerRequest,
)
from hermes_plugins.atropos_server.options import AtroposServerOptions, Registration
from hermes_plugins.atropos_server.routes import refusal
from hermes_plugins.atropos_server.server import TrainerGuard
from hermes_queue.errors import ConfigurationError

HEAD = b"GET /batch HTTP/1.1\r\nHost: 127.0.0.1\r\n"


class Desk:
    """A server whose answer is a batch, and what it was told."""

    def __init__(self) -> None:
        self.asked: list[TrainerRequest] = []
        self.told: list[str] = []
        self.body = b"x" * 2000
        self.port = 0

    async def answer(self, request: TrainerRequest) -> TrainerAnswer:
        self.asked.append(request)
        return TrainerAnswer(200, self.body, batch=self)

    async def delivered(self, batch: object, torn) -> None:
        self.told.append("torn" if torn() else "delivered")

    async def lost(self, batch: object) -> None:
        self.told.append("lost")

    async def say(self, data: bytes) -> bytes:
        """Send bytes; everything that the server answers until it closes or is silent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        found = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            writer.write(data)
            async with asyncio.timeout(0.3):
                while chunk := await reader.read(65536):
                    found += chunk
        writer.close()
        return found


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    server = HttpServer(Handlers(made.answer, made.delivered, made.lost, refusal))
    made.port = await server.listen("127.0.0.1", 0)
    yield made
    await server.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET /batch\r\n\r\n", 400),
        (b"GET /batch HTTP/2\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (HEAD + b"X: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (HEAD + b"X: y\r\n" * 150 + b"\r\n", 431),
        (HEAD + b"Content-Length: 99999999\r\n\r\n", 413),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 411),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST /scored_data HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 410),
    ],
)
async def test_a_bad_request_is_refused_before_anybody_is_asked(desk, sent, code):
    assert status(await desk.say(sent)) == code
    assert desk.asked == []


async def test_a_request_in_small_pieces_has_no_more_time_than_another(desk, monkeypatch):
    monkeypatch.setattr(http, "_REQUEST_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
    writer.write(HEAD)
    assert await reader.read() == b""
    writer.close()
    assert desk.asked == []


async def test_several_requests_may_use_one_connection(desk):
    answer = await desk.say((HEAD + b"\r\n") * 2)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert desk.told == ["delivered", "delivered"]


async def test_a_full_server_makes_room_at_the_cost_of_an_idle_connection(desk, monkeypatch):
    monkeypatch.setattr(http, "CONNECTIONS", 2)
    idle = [await asyncio.open_connection("127.0.0.1", desk.port) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert status(await desk.say(HEAD + b"\r\n")) == 200
    assert await idle[0][0].read() == b""
    for _, writer in idle:
        writer.close()


async def test_connections_that_send_slowly_keep_nobody_out(desk, monkeypatch):
    monkeypatch.setattr(http, "CONNECTIONS", 2)
    slow = [await asyncio.open_connection("127.0.0.1", desk.port) for _ in range(2)]
    for _, writer in slow:
        writer.write(HEAD)
    await asyncio.sleep(0.05)
    assert status(await desk.say(HEAD + b"\r\n")) == 200
    for _, writer in slow:
        writer.close()


async def test_a_client_that_left_before_the_answer_came_has_not_got_it():
    found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        # In one piece: the second one would meet the reset, which comes later than it in a network.
        writer.write(b"x" * 1000)
        try:
            await http._taken(writer)
            found.set_result(True)
        except ConnectionError:
            found.set_result(False)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        assert not await found


async def test_a_client_that_stops_reading_has_not_got_the_batch(desk):
    desk.body = b"x" * 30_000_000
    reader, writer = await asyncio.open_connection("127.0.0.1", desk.port, limit=1024)
    writer.write(HEAD + b"\r\n")
    await reader.readexactly(100)
    await asyncio.sleep(0.1)
    assert desk.told == []
    writer.transport.abort()
    await asyncio.sleep(0.1)
    assert desk.told == []


async def test_an_answer_that_nobody_reads_takes_memory_for_a_bounded_time(desk, monkeypatch):
    monkeypatch.setattr(http, "_ANSWER_S", 0.1)
    desk.body = b"x" * 30_000_000
    reader, writer = await asyncio.open_connection("127.0.0.1", desk.port, limit=1024)
    writer.write(HEAD + b"\r\n")
    await reader.readexactly(100)
    await asyncio.sleep(0.3)
    found = 0
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(1 << 20):
            found += len(chunk)
    assert found < len(desk.body)
    writer.transport.abort()


def request(**headers: str) -> TrainerRequest:
    return TrainerRequest(
        "GET", "/batch", {k.replace("_", "-"): v for k, v in headers.items()}, b""
    )


@pytest.mark.parametrize(
    ("headers", "let_in"),
    [
        ({"host": "127.0.0.1:8000"}, True),
        ({"host": "localhost:8000"}, True),
        ({"host": "[::1]:8000"}, True),
        ({}, True),
        ({"host": "127.0.0.1:8000", "sec_fetch_site": "none"}, False),
        ({"host": "127.0.0.1:8000", "sec_fetch_site": "cross-site"}, False),
        ({"host": "127.0.0.1:8000", "origin": "http://evil.example"}, False),
        ({"host": "evil.example:8000"}, False),
        ({"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, False),
    ],
)
def test_on_loopback_everybody_is_let_in_but_web_pages(headers, let_in):
    assert (TrainerGuard("127.0.0.1", None).refused(request(**headers)) is None) is let_in


def test_a_user_may_look_at_the_status_in_a_browser():
    headers = {"host": "127.0.0.1:8000", "sec-fetch-site": "none"}
    assert (
        TrainerGuard("127.0.0.1", None).refused(TrainerRequest("GET", "/status", headers, b""))
        is None
    )


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"trainer:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "let_in"),
    [
        ("Bearer 0123456789abcdef", True),
        (basic("0123456789abcdef"), True),
        (basic("0123456789abcdee"), False),
        ("Basic !", False),
        ("Bearer", False),
        ("", False),
        ("Bearer é", False),
    ],
)
def test_with_a_token_only_those_who_have_it_are_let_in(tmp_path: Path, authorization, let_in):
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    guard = TrainerGuard("0.0.0.0", path)
    found = guard.refused(request(host="trainer-7:8000", authorization=authorization))
    assert (found is None) is let_in


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "example.org"])
def test_an_address_that_others_reach_needs_a_token(host):
    with pytest.raises(ConfigurationError, match="needs --token-file"):
        TrainerGuard(host, None)


def test_a_short_token_is_refused(tmp_path: Path):
    (tmp_path / "token").write_text("secret")
    with pytest.raises(ConfigurationError, match="less than 16"):
        TrainerGuard("127.0.0.1", tmp_path / "token")


def options(tmp_path: Path, **more: object) -> AtroposServerOptions:
    given = {"run_id": "run", "directory": tmp_path, "group_size": 4, **more}
    return AtroposServerOptions.model_validate(given)


@pytest.mark.parametrize("more", [{"ack": "file"}, {"checkpoint": "step_{step}"}])
def test_a_checkpoint_and_its_rule_belong_together(tmp_path: Path, more):
    with pytest.raises(ValueError, match="belong together"):
        options(tmp_path, **more)


def registered(every: int, **more: object) -> TrainerProgress:
    registration = Registration(
        wandb_group="g",
        wandb_project="p",
        batch_size=8,
        max_token_len=1024,
        checkpoint_dir="",
        save_checkpoint_interval=every,
        starting_step=0,
        num_steps=9,
    )
    return TrainerProgress.model_validate({"registration": registration, **more})


@pytest.mark.parametrize(
    ("ack", "every", "done", "durable"),
    [("next", 3, 5, 5), ("interval", 3, 5, 3), ("interval", 3, 6, 6), ("interval", 0, 6, 2)],
)
def test_what_is_the_trainers_for_good_when_it_asks(tmp_path: Path, ack, every, done, durable):
    rule = Durability(options(tmp_path, ack=ack))
    assert rule.durable(registered(every, saved=2, delivered=6), done=done) == durable


def test_a_checkpoint_of_a_step_that_was_not_handed_out_proves_nothing(tmp_path: Path):
    rule = Durability(options(tmp_path, ack="file", checkpoint=str(tmp_path / "{step}")))
    (tmp_path / "7").touch()
    assert rule.durable(registered(1, delivered=6), done=6) == 0


def test_the_progress_is_read_back_and_a_change_that_failed_is_not_made(tmp_path: Path):
    file = ProgressFile(tmp_path)
    file.begin(registered(3, delivered=2))
    file.update(delivered=3, old_files={7: 5})
    assert ProgressFile(tmp_path).progress == file.progress
    assert (file.progress.delivered, file.progress.old_files) == (3, {7: 5})
