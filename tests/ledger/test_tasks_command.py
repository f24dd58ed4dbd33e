"""`hermes-queue tasks list|show|export|import|forget`."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner
from redis_server import RedisServer

from hermes_queue.cli import cli
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.tasks import Observation, Solver, TaskMemory

SOLVED, IMPOSSIBLE, KILLER = ("1" * 64, "2" * 64, "3" * 64)


@pytest.fixture
def memory(redis_server: RedisServer, monkeypatch) -> TaskMemory:
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    return TaskMemory(Ledger.connect(url=redis_server.url))


@pytest.fixture
def three(memory: TaskMemory) -> TaskMemory:
    """A task that is always solved, one that never is and flakes, one that fails of a sandbox."""
    qwen = Solver("qwen", "3")
    memory.add(
        [
            *(Observation("gsm8k", SOLVED, "easy", "1", qwen, score=1.0, seconds=4.0),) * 2,
            Observation("swe", IMPOSSIBLE, "hard\x1b[31m", "1", qwen, score=0.0, cost_usd=0.5),
            Observation("swe", IMPOSSIBLE, "hard\x1b[31m", regraded=True),
            Observation("swe", KILLER, "killer", causes=(("sandbox", "agent"),)),
        ]
    )
    return memory


def run(*words: str, code: int = 0, **more) -> str:
    done = CliRunner().invoke(cli, ["tasks", *words], **more)
    assert done.exit_code == code, done.output
    return done.stdout if not code else done.output


def listed(*words: str) -> set[str]:
    return {json.loads(line)["item_sha256"] for line in run("list", "--json", *words).splitlines()}


@pytest.mark.parametrize(
    ("words", "which"),
    [
        ((), {SOLVED, IMPOSSIBLE, KILLER}),
        (("--env", "swe"), {IMPOSSIBLE, KILLER}),
        (("--pass-rate", "0-0"), {IMPOSSIBLE}),
        (("--pass-rate", "0.5-1"), {SOLVED}),
        (("--model", "qwen"), {SOLVED, IMPOSSIBLE}),
        (("--model", "other"), set()),
        (("--flaky",), {IMPOSSIBLE}),
        (("--deadly",), set()),
        (("--unused", "1h"), set()),
    ],
)
def test_tasks_are_listed_by_what_is_known_of_them(three, words, which):
    assert listed(*words) == which


def test_the_list_is_a_table_that_ends_at_its_limit(three):
    lines = run("list", "--limit", "2").splitlines()
    assert len(lines) == 3
    assert run("list", "--env", "none").strip() == "no such task is remembered"


def test_a_wrong_band_is_refused_with_the_form_that_is_right(three):
    assert "write e.g. 0.1-0.9" in run("list", "--pass-rate", "9", code=2)


def test_one_task_is_shown_with_its_models_and_failures(three):
    text = run("show", f"gsm8k:{SOLVED}")
    assert "100 % of 2 scored by models" in text
    assert "qwen" in text
    assert "sandbox in agent: 1 times" in run("show", f"swe:{KILLER}")


def test_names_cannot_write_to_the_terminal(three):
    assert "\x1b" not in run("list") + run("show", f"swe:{IMPOSSIBLE}")


@pytest.mark.parametrize("name", ["easy", "gsm8k:" + "9" * 64])
def test_a_task_that_is_not_known_is_an_error_that_names_the_list(three, name):
    assert "hermes-queue tasks list" in run("show", name, code=2)


def test_what_is_exported_can_be_imported_elsewhere(three, tmp_path: Path):
    file = tmp_path / "memory.jsonl"
    run("export", str(file))
    before = {task.item_sha256: task for task in three.every()}
    assert run("forget", "--all", "--yes").strip() == "forgot 3 tasks"
    assert len(three) == 0
    assert run("import", str(file)).strip() == "imported 3 tasks"
    assert run("import", str(file)).strip() == "imported 0 tasks"
    assert {task.item_sha256: task for task in three.every()} == before


def test_a_file_without_line_ends_is_not_read_whole(three, tmp_path: Path):
    file = tmp_path / "long"
    file.write_bytes(b"{" * 50_000_000)
    tracemalloc.start()
    assert "long:1: has more than" in run("import", str(file), code=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_only_what_is_named_is_forgotten(three):
    assert "give a filter, or --all" in run("forget", code=2)
    assert run("forget", f"gsm8k:{SOLVED}").strip() == "forgot 1 tasks"
    assert run("forget", "--flaky", "--yes").strip() == "forgot 1 tasks"
    assert listed() == {KILLER}


@pytest.mark.fleet
def test_a_long_list_is_read_in_pages(memory):
    memory.add(Observation("e", f"{n:064x}", "i" * 120, score=1.0) for n in range(6000))
    tracemalloc.start()
    assert sum(1 for _ in memory.newest()) == sum(1 for _ in memory.every()) == 6000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000
