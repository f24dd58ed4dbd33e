"""`hermes-queue view` over a Redis and an archive of 100,000 rows, with some large records."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.plugins.view import view_index
from benchmarks.plugins.view.pages import Place
from benchmarks.processes import Server, process, until
from hermes_queue.bodies.codec import encode_record
from hermes_queue.models import FunctionCall, Message, ScoredTrajectory, TokenSequence, ToolCall
from hermes_queue.results.archive import ArchiveSink
from hermes_queue.results.stored import StoredGroup

TURNS, TURN_BYTES = 100, 50_000
"""Of the long transcript: 5 MB of tool output."""
TOKENS, TOKENS_A_TURN = 32_000, 300
SAMPLES, STEPS = 16, 100
"""Of the group that is compared."""
COMMAND = [sys.executable, "-c", "from hermes_queue.cli import main; main()"]
TOKEN = "token-of-the-benchmarks-0123456789abcdef"
LONG, STRIP, GROUP = "large.long.0", "large.strip.0", "large.compared"


def record(group: str, sample: int, **fields: Any) -> ScoredTrajectory:
    """A record as `view_index` makes it, of another group and with other fields."""
    size = SAMPLES if group == GROUP else 1
    names = {"run_id": "large", "group_id": group, "trajectory_id": f"{group}.{sample}"}
    more = {"sample_index": sample, "group_size": size, "instance_id": group, **fields}
    return view_index.record(sample).model_copy(update={**names, **more})


def conversation(commands: list[str], output_bytes: int) -> tuple[Message, ...]:
    """A task, and calls with their output."""
    found = [Message(role="user", content=view_index.text(4000))]
    for number, command in enumerate(commands):
        function = FunctionCall(name="terminal", arguments=json.dumps({"command": command}))
        calls = (ToolCall(id=f"c{number}", function=function),)
        found.append(Message(role="assistant", content="", tool_calls=calls))
        output = view_index.text(output_bytes)
        found.append(Message(role="tool", content=output, tool_call_id=f"c{number}"))
    return tuple(found)


def large_records() -> Iterator[list[ScoredTrajectory]]:
    """Groups: the long transcript, the long strip of tokens, the group that is compared."""
    chance = random.Random(18)
    calls = [view_index.text(160) for _ in range(TURNS)]
    yield [record("large.long", 0, messages=conversation(calls, TURN_BYTES), turns=())]
    ids = tuple(chance.randrange(150_000) for _ in range(TOKENS))
    mask = tuple(int(n % TOKENS_A_TURN >= 60) for n in range(TOKENS))
    logprobs = tuple(-9 * chance.random() * each for each in mask)
    strip = TokenSequence(ids=ids, loss_mask=mask, logprobs=logprobs)
    yield [record("large.strip", 0, sequences=(strip,), turns=())]
    kinds = [f"sed -n {n},{n + 40}p src/part{n % 7}.py" for n in range(60)]
    kinds += ["python -m pytest -x"] * 20
    yield [
        record(GROUP, n, messages=conversation(chance.choices(kinds, k=STEPS), 2000), turns=())
        for n in range(SAMPLES)
    ]


def prepare(folder: Path, rows: int, records: int) -> None:
    """The archives of `view_index`, and the large records in that of the small ones."""
    view_index.prepare(folder, rows, records)
    sink = ArchiveSink(folder / "small")
    for group in large_records():
        bodies = {each.trajectory_id: encode_record(each) for each in group}
        first = group[0]
        names = {n: getattr(first, n) for n in ("run_id", "group_id", "env", "instance_id")}
        more = {"size": str(len(group)), "members": json.dumps(list(bodies))}
        sink.store([StoredGroup({**names, **more, "finished": str(view_index.NOW)}, bodies)])
    sink.close()


# --- the server ------------------------------------------------------------------------------


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serves(origin: str) -> bool:
    """Whether something answers there."""
    try:
        with urllib.request.urlopen(origin, timeout=5):
            return True
    except OSError:
        return False


@dataclass(frozen=True)
class Viewer:
    """The server of our pages."""

    port: int
    pid: int

    @property
    def origin(self) -> str:
        """Scheme, name and port."""
        return f"http://127.0.0.1:{self.port}"

    def api(self, path: str, **parameters: object) -> Any:
        """What the API answers."""
        query = urllib.parse.urlencode(parameters)
        with self.stream(f"{path}{'?' + query if query else ''}") as answer:
            assert answer.status == 200, (path, answer.status, answer.read())
            return json.loads(answer.read())

    def stream(self, path: str) -> http.client.HTTPResponse:
        """An answer that is still to be read."""
        request = urllib.request.Request(self.origin + path)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=60)
        return answer

    def place(self) -> Place:
        """For a browser that is logged in."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"Content-Type": "application/json", "X-HQ-Request": "1"}
        connection.request("POST", "/api/login", json.dumps({"token": TOKEN}), headers)
        name, value = connection.getresponse().headers["Set-Cookie"].split(";")[0].split("=", 1)
        connection.close()
        return Place(self.origin, "/static/icon.svg", (name, value))

    def indexed(self, rows: int) -> None:
        """Wait until so many rows are in the index."""
        until(lambda: self.api("/api/trajectories", limit=1)["count"] >= rows, limit_s=900)


@contextmanager
def viewer(server: Server, folder: Path, archive: Path | None = None) -> Iterator[Viewer]:
    """Serve Redis and `archive` while the block runs; the index is kept in `folder`."""
    port, link = free_port(), folder / "redis.sock"
    link.unlink(missing_ok=True)
    link.symlink_to(server.path)
    given = {
        "HERMES_QUEUE_REDIS_URL": f"unix://{link}?db=0",  # indexes go by it
        "HERMES_QUEUE_VIEW_TOKEN": TOKEN,
        "HERMES_QUEUE_PATHS_CACHE": str(folder / "viewer-cache"),
        "HERMES_QUEUE_ARCHIVE_DIRECTORY": str(archive or folder / "no-archive"),
    }
    command = [*COMMAND, "view", "--port", str(port)]
    quiet: Any = {"stdout": subprocess.DEVNULL}
    with process(command, env=os.environ | given, **quiet) as running:
        found = Viewer(port, running.pid)
        until(lambda: serves(found.origin), running, limit_s=60)
        yield found
