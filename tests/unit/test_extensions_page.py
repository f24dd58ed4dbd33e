"""The sink, parser and token server of docs/extensions.md, as a plugin and by their modules.

What is run by a worker is in tests/e2e/test_own_pieces.py.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import plugin
import pytest
import token_stub
from click.testing import CliRunner
from pages import ROOT, blocks
from records import make_job, make_record
from token_stub import TokenStub

from hermes_queue import extensions
from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.parsers import load_parser
from hermes_queue.agent.registry import check_params
from hermes_queue.agent.tokens.servers import connect, load_server
from hermes_queue.cli import cli
from hermes_queue.errors import ConfigurationError, ModelConfigError
from hermes_queue.models import AgentSpec, Message
from hermes_queue.plugins import GROUP, KINDS
from hermes_queue.settings import ModelSettings

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

FILES = {
    name: block.text
    for block in blocks(ROOT / "docs" / "extensions.md")
    if (name := block.says("file"))
}
[TARGET] = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"][GROUP].values()


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's files, installed."""
    for name in FILES:  # those of another test's directory
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    with plugin.installing(tmp_path, monkeypatch):
        plugin.install(tmp_path, "my-extensions", FILES, TARGET)
        yield tmp_path


def test_the_page_registers_one_of_each_kind_and_each_can_be_used() -> None:
    theirs = [each for each in extensions.listed() if each.origin == "my-extensions 1.0"]
    assert {each.kind for each in theirs} == set(KINDS)
    assert [each.error for each in theirs if each.error] == []


@pytest.mark.parametrize("name", ["sqlite", "sqlite_rows:FORMAT"])
def test_the_sink_fills_a_table_once(name: str, directory: Path) -> None:
    record = make_record(make_job())
    (directory / "run.jsonl").write_text(record.model_dump_json() + "\n")
    out = directory / "results.sqlite"
    words = ["--from", str(directory / "run.jsonl"), "--out", str(out), "--table", "scores"]
    for _ in range(2):
        done = CliRunner().invoke(cli, ["export", "--format", name, *words])
        assert done.exit_code == 0, done.output
    database = sqlite3.connect(out)
    assert list(database.execute("SELECT id, score FROM scores")) == [
        (record.trajectory_id, record.score)
    ]
    database.close()


@pytest.mark.parametrize("name", ["sqlite", "sqlite_rows:FORMAT"])
def test_the_sink_is_a_command_with_its_own_flags(name: str) -> None:
    shown = CliRunner().invoke(cli, ["sink", name, "--help"])
    assert "--table" in shown.output
    assert "Name of the table." in shown.output


def test_an_option_that_the_sink_refuses_is_a_wrong_flag(directory: Path) -> None:
    words = ["--out", str(directory / "x"), "--table", "a b", "--until-done", "--run", "r"]
    done = CliRunner().invoke(cli, ["sink", "sqlite", *words])
    assert done.exit_code == 2
    assert "--table" in done.output


def test_a_sink_that_cannot_be_loaded_spoils_only_its_own_command(directory: Path) -> None:
    (directory / "sqlite_rows.py").write_text("import no_such_library\n")
    shown = CliRunner().invoke(cli, ["sink", "--help"])
    assert shown.exit_code == 0
    assert "parquet" in shown.output
    done = CliRunner().invoke(cli, ["sink", "sqlite", "--out", "x"])
    assert done.exit_code == 2
    assert "plugin my-extensions 1.0" in done.output
    assert "no_such_library" in done.output


@pytest.mark.parametrize("name", ["line_calls", "line_calls:PARSER"])
def test_the_parser_reads_calls_and_refuses_others(name: str) -> None:
    reply = load_parser(name).parse('Look.\nCALL read {"path": "a"}\nCALL stop {"now"\nBye.')
    assert [(c.name, c.arguments, c.status) for c in reply.calls] == [
        ("read", '{"path": "a"}', "ok"),
        ("stop", '{"now"', "invalid_json"),
    ]
    assert reply.content is not None
    assert reply.content.startswith("Look.")


class PlainStub(TokenStub):
    """The API of `plain_server.py`."""

    count = "completion_tokens"

    @property
    def _version_path(self) -> str:
        return "/about"

    def _answer(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if path == "/about":
            return {"version": "1.2"}
        if path == "/decode":
            return {"text": token_stub.decode(body["ids"])}
        if path == "/score":
            return {"logprobs": [None, *map(token_stub.logprob, range(1, len(body["ids"])))]}
        if path == "/encode":
            return super()._answer("/tokenize", {**body, "add_generation_prompt": body["reply"]})
        answer = super()._answer("/v1/completions", {"prompt": body["ids"]})["choices"][0]
        return {
            "ids": answer["token_ids"],
            "logprobs": answer["logprobs"]["token_logprobs"],
            "why": answer["finish_reason"],
            "prompt_tokens": len(body["ids"]),
            self.count: len(answer["token_ids"]),
            "weights": "step-3",
        }


@pytest.mark.parametrize("name", ["plain", "plain_server:SERVER"])
async def test_the_token_server_serves_token_mode(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_stub, "PATHS", {"/encode", "/continue", "/decode", "/score"})

    async def gold() -> Any:
        raise AssertionError("only the oracle asks")

    async with PlainStub(["Hello there."], kind="vllm") as stub:
        params = {"mode": "tokens", "server": name, "probe_tools": False}
        spec = AgentSpec(kind="openai", model="m", base_url=stub.url, params=params)
        settings = ModelSettings(max_retries=0, trusted_urls=stub.url)
        chat = make_chat(spec, AgentScript(gold), settings)
        question = [Message(role="user", content="Hi.")]
        reply = await chat.complete(question, [], {}, time.monotonic() + 60)
        await close_clients()
    assert reply.message.content == "Hello there."
    assert reply.turn is not None
    assert reply.turn.policy_version == "step-3"
    assert reply.turn.server_version == f"{name} 1.2"
    assert len(reply.turn.completion_ids or ()) == len(reply.turn.logprobs or ()) > 0


def token_chat(stub: TokenStub) -> Any:
    params = {"mode": "tokens", "server": "plain", "probe_tools": False}
    spec = AgentSpec(kind="openai", model="m", base_url=stub.url, params=params)
    settings = ModelSettings(max_retries=0, trusted_urls=stub.url)
    return make_chat(spec, AgentScript(lambda: None), settings)  # type: ignore[arg-type]


async def test_a_token_server_that_does_not_find_the_usage_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_stub, "PATHS", {"/encode", "/continue", "/decode", "/score"})
    async with PlainStub(["Hello there."], kind="vllm") as stub:
        stub.count = "n_tokens"
        question = [Message(role="user", content="Hi.")]
        with pytest.raises(ModelConfigError, match=r"'plain': .* ids.*`read_usage` the object"):
            await token_chat(stub).complete(question, [], {}, time.monotonic() + 60)
        await close_clients()


def test_a_token_server_that_connects_to_something_else_is_refused(directory: Path) -> None:
    source = (directory / "plain_server.py").read_text()
    source = source.replace("connect=Plain", "connect=lambda post, model: {}")
    (directory / "plain_server.py").write_text(source)
    with pytest.raises(
        ModelConfigError, match=r"'plain': connect\(\) returns a dict that has no re"
    ):
        connect("plain", None, "m")  # type: ignore[arg-type]


def test_an_agent_that_declares_its_parameters_has_no_others() -> None:
    check_params("careful", {"command": "true", "context": "drop_oldest"})
    with pytest.raises(ConfigurationError, match=r"comand: agent careful has no .* it has command"):
        check_params("careful", {"comand": "true"})
    with pytest.raises(ConfigurationError, match=r"agent careful: command: .* valid string, not 1"):
        check_params("careful", {"command": 1})
    check_params("careful:make", {"comand": "true"})  # a plain function declares nothing


async def test_the_token_server_is_asked_for_scores() -> None:
    async def post(path: str, body: Mapping[str, Any]) -> bytes:
        assert path == "/score"
        return json.dumps({"logprobs": [None, -0.5]}).encode()

    assert await load_server("plain").connect(post, "m").score([1, 2]) == (None, -0.5)
