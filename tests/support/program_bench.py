"""A tiny program in a real slot, the model behind it, and the attempt that it makes."""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from chat_endpoint import Answer, ChatEndpoint, completion
from records import make_job

from hermes_queue.errors import TrajectoryFailure
from hermes_queue.models import AttemptRecord
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.settings import ModelSettings
from workers.attempt import Attempt, Services
from workers.draft import Draft
from workers.rollout import rollout

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


class HasUrl(Protocol):
    """A model server."""

    url: str


PRELUDE = '''
import json, os, socket, subprocess, sys, time, urllib.error, urllib.request
HOST, KEY = os.environ["URL"].partition("//")[2], os.environ["KEY"]
TASK = open(os.environ["TASK"]).read()
TOOLS = [dict(type="function", function=dict(name="sh", parameters=dict(
    type="object", properties=dict(command=dict(type="string")), required=["command"])))]

def post(path, body, key=KEY):
    head = {"authorization": "Bearer " + key, "content-type": "application/json"}
    data = json.dumps(body).encode()
    request = urllib.request.Request("http://" + HOST + path, data, head)
    return json.load(urllib.request.urlopen(request))

def ask(messages, **more):
    body = dict(model="policy", messages=messages, tools=TOOLS, **more)
    return post("/v1/chat/completions", body)["choices"][0]["message"]

def user(text):
    return dict(role="user", content=text)

def work():
    """A whole agent: commands until a reply has none."""
    messages = [dict(role="system", content="You use sh."), user(TASK)]
    while True:
        said = ask(messages)
        messages.append(said)
        if not said.get("tool_calls"):
            return said["content"]
        for call in said["tool_calls"]:
            command = json.loads(call["function"]["arguments"])["command"]
            done = subprocess.run(command, shell=True, capture_output=True, text=True)
            messages.append(dict(role="tool", tool_call_id=call["id"], content=done.stdout))
'''


def program(code: str, **more: Any) -> dict[str, Any]:
    """The definition of a program that runs `code` after the prelude, with python3."""
    text = base64.b64encode((PRELUDE + textwrap.dedent(code)).encode()).decode()
    return {
        "name": "tiny",
        "version": "1",
        "run": f'echo {text} | base64 -d >"$HOME/tiny.py"; exec python3 "$HOME/tiny.py"',
        "env": {"URL": "{url}", "KEY": "{key}", "TASK": "{task}"},
        **more,
    }


def calling(command: str, call_id: str = "c1") -> tuple[int, dict[str, Any]]:
    """A completion with one call of the program's tool."""
    text = json.dumps({"command": command})
    call = {"id": call_id, "type": "function", "function": {"name": "sh", "arguments": text}}
    message = {"tool_calls": [call]}
    return completion(None, message=message, finish_reason="tool_calls")


@asynccontextmanager
async def scripted_model(*answers: Answer | Callable[[], Answer]) -> Any:
    """A chat endpoint that gives the answers in turn, the last one for ever."""
    left = list(answers)

    def handle(path: str, body: Mapping[str, Any]) -> Answer:
        if path != "/v1/chat/completions":
            return 404, {"error": {"message": "not found"}}
        answer = left.pop(0) if len(left) > 1 else left[0]
        return answer() if callable(answer) else answer

    async with ChatEndpoint(handle) as endpoint:
        yield endpoint


async def attempted(
    backend: SandboxBackend,
    endpoint: HasUrl,
    definition: Mapping[str, Any],
    *,
    earlier: tuple[AttemptRecord, ...] = (),
    params: Mapping[str, Any] | None = None,
    **job: Any,
) -> tuple[Draft, TrajectoryFailure | None]:
    """One attempt at a row of gsm8k, and why it has no score."""
    agent = {
        "kind": "command",
        "model": "policy",
        "base_url": endpoint.url,
        "params": {"program": dict(definition), "probe_tools": False, **(params or {})},
    }
    fields = {"item": ROW, "agent": agent, **job}
    draft = Draft(job=make_job(**fields), attempt=len(earlier) + 1, epoch=1, earlier=earlier)
    draft.clock.total_s = 3600.0
    settings = ModelSettings(trusted_urls=endpoint.url, max_retries=1)

    async def measured() -> None:
        pass

    try:
        services = Services(backend, settings)
        await rollout(Attempt(draft=draft, row=ROW, services=services, on_measured=measured))
    except TrajectoryFailure as failure:
        return draft, failure
    return draft, None
