"""`hermes-queue play`: a person at a terminal, a script on standard input, an agent one watches."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path

import psutil
import pytest
from chat_endpoint import completion
from played import play, terminal
from program_bench import calling, program, scripted_model

from hermes_queue.models import ScoredTrajectory

FERRY = ("--env", "gsm8k", "--instance-id", "gsm8k-own-ferry")


@pytest.fixture
def nap() -> str:
    """A command that nothing else on this host runs, not even this test in another process."""
    return f"sleep {secrets.randbelow(900_000) + 100_000}"


def record(path: Path) -> ScoredTrajectory:
    return ScoredTrajectory.model_validate_json(path.read_text())


def test_a_script_solves_a_row_and_its_record_is_an_ordinary_one(tmp_path: Path) -> None:
    lines = r"""
printf '\033]0;title\007 and \302\233 %s' harmless
:calculator 40 * 85
:calculator
:nonsense
:diff
:answer So it is \boxed{3400}.
"""
    done = play(*FERRY, "--record", "it.json", lines=lines, directory=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "␛]0;title␇ and ⟨U+009B⟩ harmless" in done.stdout
    assert not {"\x1b", "\x07", "\x9b"} & set(done.stdout)
    assert "expression: Field required; :calculator expression" in done.stdout
    assert "there is no :nonsense; there are :calculator :answer :help" in done.stdout
    assert "no git repository" in done.stdout
    assert "SOLVED: score 1 (no_tool_call)\n  reason: right" in done.stdout
    made = record(tmp_path / "it.json")
    assert (made.agent.kind, made.score, made.tool_calls.ok) == ("human", 1.0, 2)
    assert [each.role for each in made.messages] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant")
    ]


@pytest.mark.parametrize(
    ("lines", "flags", "end"),
    [
        (":answer \\boxed{1}\n", (), "NOT SOLVED: score 0 (no_tool_call)"),
        ("true\nfalse\n", ("--max-turns", "2"), "NOT SOLVED: score 0 (max_turns)"),
        ("true\n", (), "NO VERDICT: cancelled in agent: ended by the person who played"),
    ],
    ids=["wrong", "limit", "end-of-input"],
)
def test_whatever_is_not_solved_exits_with_1(
    lines: str, flags: tuple[str, ...], end: str, tmp_path: Path
) -> None:
    done = play(*FERRY, *flags, lines=lines, directory=tmp_path)
    assert (done.returncode, end in done.stdout) == (1, True), done.stdout


def test_an_agent_is_watched_with_its_calls_and_results(tmp_path: Path) -> None:
    done = play(*FERRY, "--agent", "oracle", directory=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "-- turn 4\n$ python3 -c 'print(40*85)'\n[exit code 0]\n3400\n" in done.stdout
    assert "-- 5 turns, load" in done.stdout


async def test_a_program_is_watched_by_the_calls_that_it_makes(tmp_path: Path) -> None:
    code = """
    print(work(), flush=True)
    raise SystemExit(3)
    """
    chosen = json.dumps(program(code))
    answer = completion(r"It is \boxed{3400}.")
    async with scripted_model(calling("echo $((40*85))"), answer) as model:
        agent = ("--agent", "command", "--model", "policy", "--base-url", model.url)
        done = await asyncio.to_thread(
            play,
            *(*FERRY, *agent, "--agent-param", f"program={chosen}", "--agent-param"),
            "probe_tools=false",
            directory=tmp_path,
        )
    assert done.returncode == 0, done.stdout
    turn, call, observation, end = (
        done.stdout.index(text)
        for text in ("-- turn 1: 7 + 2 tokens", ":tool sh {", "\n3400\n", "-- turn 2: 7 + 2")
    )
    assert turn < call < observation < end
    assert "-- program tiny 1: exit code 3" in done.stdout
    assert done.stdout.count("It is \\boxed{3400}.") == 2  # the reply, and the program's output
    assert "SOLVED: score 1 (exited)" in done.stdout


@pytest.mark.parametrize(
    ("flags", "code", "shown"),
    [
        (("--env", "strange_env:OUTAGE"), 2, "NO VERDICT: env_infra in setup: the package index"),
        (("--env", "strange_env:EXITS_IN_A_TASK"), 2, "NO VERDICT: env_bug in verify: SystemExit"),
        (("--sandbox", "shut:BACKEND"), 3, "error: bubblewrap may not"),
        (("--group-size", "2"), 2, "error: unrecognized arguments: --group-size 2; see"),
        (("--record", "missing/it.json"), 2, "error: --record missing/it.json: No such file"),
    ],
    ids=["outage", "exits", "isolation", "flag", "record"],
)
def test_what_is_not_the_agents_fault_is_told_apart(
    flags: tuple[str, ...], code: int, shown: str, tmp_path: Path
) -> None:
    (tmp_path / "shut.py").write_text(
        "from hermes_queue.errors import IsolationUnavailable\n"
        "from hermes_queue.sandbox.local.backend import LocalBackend\n"
        "class BACKEND(LocalBackend):\n"
        "    async def start(self): raise IsolationUnavailable('bubblewrap may not')\n"
    )
    rows = Path(__file__).parents[3] / "producers" / "data" / "gsm8k.jsonl"
    source = ("--dataset", str(rows)) if "--env" in flags else ()
    done = play(
        *("--agent", "oracle"), *flags, *source, directory=tmp_path, STRANGE_OUTAGE="/dev/null"
    )
    assert (done.returncode, shown in done.stdout) == (code, True), done.stdout


def test_ctrl_c_ends_the_command_and_not_the_session(nap: str, tmp_path: Path) -> None:
    with terminal(*FERRY, "--record", "it.json", directory=tmp_path) as person:
        person.sees("[1/50] $ ")
        person.type(f"{nap}\n")
        person.sees(nap)
        while not running(nap):
            pass
        person.type("\x03")
        person.sees("interrupted; its output is lost")
        assert not running(nap)
        person.sees("[2/50] $ ")
        person.type("half a comm")
        person.sees("half a comm")  # only then does the prompt wait, and a Ctrl-C reach it
        person.type("\x03")
        person.sees("Ctrl-D or :quit ends the session")
        person.sees("[2/50] $ ")
        person.type("\x04")
        assert person.ends() == 1
    made = record(tmp_path / "it.json")
    assert made.failure is not None
    assert (made.score, made.failure.cause, made.messages[-1].role) == (None, "cancelled", "tool")
    assert "[exit code 130]" in str(made.messages[-1].content)


def test_ctrl_c_ends_a_session_that_one_only_watches(nap: str, tmp_path: Path) -> None:
    flags = ("--agent", "slow", "--agent-param", f"seconds={nap.split()[1]}")
    with terminal(*FERRY, *flags, "--record", "it.json", directory=tmp_path) as person:
        person.sees(nap)
        while not running(nap):
            pass
        person.type("\x03")
        person.sees("NO VERDICT: cancelled in agent: interrupted")
        assert person.ends() == 130
    assert not running(nap)
    assert json.loads((tmp_path / "it.json").read_text())["stop_reason"] == "cancelled"


def test_ctrl_c_while_the_backend_starts_ends_in_an_orderly_way(tmp_path: Path) -> None:
    (tmp_path / "starting.py").write_text(
        "import asyncio, time\n"
        "from hermes_queue.sandbox.local.backend import LocalBackend\n"
        "from hermes_plugins.play.background import BackgroundLoop\n"
        "begin = BackgroundLoop.start\n"
        "BackgroundLoop.start = lambda self: begin(self) or time.sleep(0.5)\n"
        "class BACKEND(LocalBackend):\n"
        "    async def start(self):\n"
        "        print('not up yet', flush=True)\n"
        "        await asyncio.sleep(4243)\n"
    )
    flags = ("--sandbox", "starting:BACKEND", "--record", "it.json")
    with terminal(*FERRY, *flags, directory=tmp_path) as person:
        person.sees("not up yet")
        person.type("\x03")
        person.sees("NO VERDICT: cancelled in load: interrupted")
        assert person.ends() == 130
    assert "Traceback" not in person.shown
    assert json.loads((tmp_path / "it.json").read_text())["stop_reason"] == "cancelled"


def running(command: str) -> bool:
    """Whether a process on this host is exactly this command."""
    found = (each.info["cmdline"] for each in psutil.process_iter(["cmdline"]))
    return command.split() in found
