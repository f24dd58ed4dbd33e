"""What the Atropos sink makes of groups that come twice or say nothing of the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

from hermes_queue.cli import cli
from hermes_queue.models import TokenSequence
from hermes_queue.sinks.atropos.client import AtroposRefusal, AtroposServer, AtroposUnavailable
from hermes_queue.sinks.atropos.options import AtroposOptions
from hermes_queue.sinks.atropos.sink import AtroposSink

pytestmark = pytest.mark.xdist_group("sinks")
"""One process imports pyarrow, and forks sinks and Atropos servers."""


def provenance(batch: list[dict]) -> list[str]:
    return [each["hermes_queue"]["trajectory_id"] for group in batch for each in group["overrides"]]


async def test_a_group_that_is_in_the_stream_twice_is_sent_once_and_both_are_acknowledged(
    trainer, put, start, ledger
):
    first = put("one")
    [(_, fields)] = ledger.client.xrange("hq:results")
    ledger.client.xadd("hq:results", fields)  # as a Redis that lost its last second may have it
    second = put("two")
    trainer.begin()
    sink = start()
    assert provenance(await trainer.next_batch()) == first + second
    await sink.until(lambda: ledger.client.xpending("hq:results", "atropos")["pending"] == 0)
    await asyncio.sleep(0.3)
    assert sink.counts.posts == 2


async def test_a_replacement_that_comes_first_does_not_set_the_group_size(
    trainer, put, start, ledger
):
    again = make_job(instance="again", size=1).model_copy(update={"requeued_from": "r.0a.1"})
    enqueue(ledger, again)
    publish(ledger, make_record(again, 0.25, epoch=begin(ledger, again).epoch))
    good = put("one") + put("two")
    trainer.begin()
    sink = start()
    assert provenance(await trainer.next_batch()) == good
    assert sink.counts.refused == {"group_size": 1}
    await sink.until(lambda: ledger.client.xpending("hq:results", "atropos")["pending"] == 0)


@pytest.fixture
def answering() -> Iterator[dict]:
    """A server in front of the trainer's that answers posts with `answer["status"]`."""
    answer: dict = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.respond(200, b'{"batch_size": -1}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.respond(answer["status"], b"{}")

        def respond(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        answer["url"] = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield answer
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (408, AtroposUnavailable),
        (429, AtroposUnavailable),
        (401, AtroposUnavailable),
        (413, AtroposRefusal),
        (422, AtroposRefusal),
        (503, AtroposUnavailable),
    ],
)
def test_an_answer_that_is_not_about_the_group_refuses_no_group(answering, status, error):
    server = AtroposServer(answering["url"])
    try:
        answering["status"] = status
        server.limits()
        with pytest.raises(error):
            server.post(b"x")
    finally:
        server.close()


@pytest.mark.parametrize("start", ["yesterday", "12-x"])
def test_a_start_that_is_no_place_is_said_at_once(start):
    flags = ["--url", "http://127.0.0.1:1", "--start", start]
    done = CliRunner().invoke(cli, ["sink", "atropos", *flags])
    assert done.exit_code == 2
    assert f"start '{start}'" in done.output


async def test_only_what_came_since_a_time_is_sent(trainer, put, start, ledger):
    put("old")
    await asyncio.sleep(0.05)
    seconds, microseconds = ledger.client.time()
    await asyncio.sleep(0.05)
    good = put("one") + put("two")
    trainer.begin()
    start(start=seconds + microseconds / 1e6)
    assert provenance(await trainer.next_batch()) == good


async def test_sampled_tokens_that_are_not_sent_are_counted(trainer, put, start):
    def with_a_short_sequence(record):
        more = TokenSequence(ids=(7, 8), loss_mask=(0, 1), logprobs=(0.0, -0.25))
        return record.model_copy(update={"sequences": (*record.sequences, more)})

    put("one", change=with_a_short_sequence)
    trainer.begin()
    sink = start()
    await sink.until(lambda: sink.counts.posts == 1)
    assert sink.counts.untrained_tokens == 4


def test_a_sink_that_is_stopped_leaves_no_reader_behind(ledger, put, caplog):
    put("one")
    put("two")
    options = AtroposOptions(url="http://127.0.0.1:9", group="atropos", redis_url=ledger.url)
    sink = AtroposSink(options)

    async def serve_until_it_has_read() -> None:
        running = asyncio.create_task(sink.run())
        while not sink._journal.ready:
            await asyncio.sleep(0.01)
        sink.stop()
        await running

    asyncio.run(serve_until_it_has_read())
    assert "aclose" not in caplog.text
    assert "asynchronous generator" not in caplog.text
