"""`hermes-queue rescore`: against a stub whose logprobs are those of the position."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from records import make_job
from token_stub import TokenStub

from envs.base import Verdict
from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.tokens.rescore import CONCURRENT_SEQUENCES, rescore_at
from hermes_queue.cli import cli
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings
from workers.draft import Draft
from workers.record import record_of

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

SERVERS = ["vllm", "sglang"]


async def gold():
    raise AssertionError("only the oracle asks")


class Served:
    """A stub on a loop of its own, since commands have theirs."""

    def __init__(self, kind):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.stub = TokenStub([], kind=kind)
        self.run(self.stub.__aenter__())

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self):
        self.run(close_clients())
        self.run(self.stub.__aexit__())
        self.run(self._gone())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _gone(self):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def record(self, **sampling):
        return self.run(self._record(sampling))

    async def _record(self, sampling):
        self.stub.replies = ["one", "two"]
        params = {"mode": "tokens", "server": self.stub.kind}
        agent = AgentSpec(kind="openai", model="m", base_url=self.stub.url, params=params)
        draft = Draft(make_job(agent=agent), attempt=1, epoch=1)
        draft.verdict = Verdict(score=1.0)
        chat = make_chat(agent, AgentScript(gold), ModelSettings(trusted_urls=self.stub.url))
        messages = [Message(role="user", content="count")]
        anchor = None
        for _ in range(2):
            until = time.monotonic() + 60
            reply = await chat.complete(messages, [], sampling, until, anchor=anchor)
            anchor = reply.anchor
            messages += [reply.message, Message(role="user", content="more")]
            draft.agent.turns.append(reply.turn)
        return record_of(draft, owner="w", host="h")


@pytest.fixture
def serve() -> Iterator[object]:
    served: list[Served] = []

    def serve(kind: str) -> Served:
        served.append(Served(kind))
        return served[-1]

    yield serve
    for each in served:
        each.close()


@pytest.fixture
def rescore(tmp_path):
    def rescore(*records, flags=()):
        path = tmp_path / "o.jsonl"
        path.write_text("".join(f"{record.model_dump_json()}\n" for record in records))
        return CliRunner().invoke(cli, ["rescore", str(path), *flags])

    return rescore


@pytest.mark.parametrize("kind", SERVERS)
def test_every_sampled_token_is_compared_at_the_endpoint_of_the_record(serve, rescore, kind):
    record = serve(kind).record()
    result = rescore(record)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("1 records, 8 sampled tokens\n")
    assert float(re.search(r"largest ([^,]*),", result.output)[1]) < 1e-7


@pytest.mark.parametrize("kind", SERVERS)
def test_a_difference_above_the_bound_is_a_failure(serve, rescore, kind):
    served = serve(kind)
    record = served.record()

    def shift(answer):
        meta = answer.get("meta_info")
        if meta:
            meta["input_token_logprobs"][-1][0] -= 0.25
        else:
            for entry in answer["choices"][0]["prompt_logprobs"][-1].values():
                entry["logprob"] -= 0.25

    served.stub.break_reply = shift
    result = rescore(record)
    assert result.exit_code == 1
    assert re.search("difference: largest 0.25, mean 0.031[23] nats", result.output)
    assert "largest at" in result.output
    assert rescore(record, flags=["--bound", "0.3"]).exit_code == 0


def test_sequences_of_a_record_are_sent_together(serve):
    served = serve("vllm")
    record = served.record()
    many = record.model_copy(update={"sequences": record.sequences * (2 * CONCURRENT_SEQUENCES)})
    together = asyncio.Barrier(
        CONCURRENT_SEQUENCES
    )  # nobody is answered before all of them have asked

    async def gate(path):
        await asyncio.wait_for(together.wait(), 30)

    served.stub.gate = gate
    found = served.run(rescore_at(many, api_key="none"))
    assert (found.tokens, round(found.largest, 6)) == (2 * CONCURRENT_SEQUENCES * 8, 0)


def test_logprobs_after_temperature_are_not_compared(serve, rescore):
    served = serve("vllm")
    served.stub.processed = True
    result = rescore(served.record(temperature=1.4))
    assert result.exit_code == 1
    assert "1 records not compared: its logprobs were taken after temperature" in result.output


def test_logprobs_after_a_temperature_of_one_are_compared(serve, rescore):
    served = serve("vllm")
    served.stub.processed = True
    assert rescore(served.record(temperature=1.0)).exit_code == 0


def test_a_server_without_prompt_logprobs_is_reported(serve, rescore):
    served = serve("vllm")
    record = served.record()
    served.stub.break_reply = lambda answer: answer["choices"][0].pop("prompt_logprobs")
    result = rescore(record)
    assert result.exit_code == 1
    assert "prompt_logprobs" in result.output


def test_an_answer_about_other_tokens_is_requested_again_and_reported(serve, rescore):
    served = serve("sglang")
    record = served.record()
    broken = []

    def once(answer):
        if not broken:
            broken.append(answer["meta_info"]["input_token_logprobs"].pop())

    served.stub.break_reply = once
    result = rescore(record)
    assert result.exit_code == 0, result.output
    assert re.search(r"1 answers requested again: .*different from the end on", result.output)


def test_answers_that_are_always_about_other_tokens_are_a_failure(serve, rescore):
    served = serve("sglang")
    record = served.record()

    def always(answer):
        answer["meta_info"]["input_token_logprobs"][2][1] = 0

    served.stub.break_reply = always
    result = rescore(record)
    assert result.exit_code == 1
    assert "different from 2 on" in result.output


def test_records_without_token_ids_are_reported_and_fail_the_command(serve, rescore):
    record = serve("vllm").record()
    bare = record.model_copy(update={"sequences": None, "turns": ()})
    result = rescore(bare)
    assert result.exit_code == 1
    assert "1 records not compared: no token ids" in result.output


def test_a_line_that_is_no_record_is_named(tmp_path):
    path = tmp_path / "o.jsonl"
    path.write_text("{}\n")
    result = CliRunner().invoke(cli, ["rescore", str(path)])
    assert result.exit_code == 2
    assert "line 1" in result.output
