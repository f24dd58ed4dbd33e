"""A server whose chat template drops tools, met by a whole run: producer, worker, sandbox."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from json_server import json_server
from redis_server import RedisServer
from worker_process import closing_workers
from zygote import run_forked

from hermes_queue.settings import PathSettings

Done = subprocess.CompletedProcess[str]


def reply(body: dict[str, Any]) -> str:
    """A model that knows the bundled ferry problem and can only call what it reads of."""
    system, *rest = body["messages"]
    if "<tools>" not in (system["content"] or ""):
        return "I have no tools."
    if len(rest) == 1:
        call = {"name": "calculator", "arguments": {"expression": "40*85"}}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    number = rest[-1]["content"].removeprefix("<tool_response>\n").partition("\n")[0]
    return f"It is \\boxed{{{number}}}"


def respond(path: str, body: dict[str, Any], _: str) -> tuple[int, dict[str, Any]]:
    if path != "/v1/chat/completions" or not body:
        return 404, {}
    tokens = len(json.dumps(body["messages"])) // 4  # tools are no part of the prompt
    message = {"role": "assistant", "content": reply(body)}
    usage = {"prompt_tokens": tokens, "completion_tokens": 5}
    choices = [{"message": message, "finish_reason": "stop"}]
    return 200, {"choices": choices, "usage": usage}


@pytest.fixture
def url() -> Iterator[str]:
    with json_server(respond) as address:
        yield f"{address}/v1"


def run(url: str, out: Path, *flags: str, redis_url: str = "") -> Done:
    """Have the producer follow a run against the server, with everything of its own."""
    run_id = f"e2e-{uuid4().hex}"
    settings = {k: v for k, v in os.environ.items() if not k.startswith("HERMES_QUEUE_")}
    if redis_url:
        settings["HERMES_QUEUE_REDIS_URL"] = redis_url
    agent = ("--agent", "openai", "--model", "m", "--base-url", url, "--concurrency", "1")
    words = (*agent, "--run-id", run_id, "--out", out, *flags)
    try:
        return run_forked("producers.gsm8k", *words, environment=settings, directory=out.parent)
    finally:
        shutil.rmtree(PathSettings().cache / "embedded" / run_id, ignore_errors=True)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.fleet
def test_the_run_pauses_at_the_first_trajectory_and_says_what_to_do(
    url: str, tmp_path: Path
) -> None:
    done = run(url, out := tmp_path / "o.jsonl", "--items", "4")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "is paused (model_config): tools_dropped" in done.stderr
    (record,) = records(out)
    assert record["score"] is None
    assert record["failure"]["cause"] == "model_config"


def test_the_same_server_solves_it_in_prompted_mode(
    url: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    flags = ("--instance-id", "gsm8k-own-ferry", "--group-size", "3")
    flags += ("--agent-param", "tools=prompted")
    with closing_workers(redis_server.url, tmp_path / "workers", concurrency=1) as start:
        start()
        done = run(url, out := tmp_path / "o.jsonl", *flags, redis_url=redis_server.url)
    assert done.returncode == 0, done.stdout + done.stderr
    made = records(out)
    assert [record["score"] for record in made] == [1.0] * 3
    assert {record["tool_calls"]["ok"] for record in made} == {1}
    assert made[0]["messages"][2]["tool_calls"][0]["function"]["name"] == "calculator"
