"""A run of real tasks for pictures: names, reports and tests of `producers/data/swe_smith.jsonl`.

Agents are played: what they say and run fits the first task. Token ids are those of words.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from records import make_job, make_record

from hermes_queue.models import (
    Failure,
    FunctionCall,
    Message,
    ScoredTrajectory,
    TokenSequence,
    ToolCall,
    ToolCallCounts,
    Turn,
    Usage,
)

ITEMS = Path(__file__).parents[4] / "producers/data/swe_smith.jsonl"
RUN, SAMPLES = "grpo-qwen3-8b", 8
SYSTEM = (
    "You are a software engineer who repairs Python packages. You work in a sandbox through the "
    "tools you are given; commands must not wait for input."
)
TASK = """The Python package in /workspace has a bug. This is the report:

<report>
{report}</report>

Find the cause and repair the package's source code. Your work is graded by tests you do not have.
When you are done, call the tool `submit`."""
TEST = "python -m pytest -o addopts= -q {tests}"
SNIPPET = """281-
282:        def {name}(j):
283-            return isinstance(j, Job)
284-
285-        timestats = "(last run: %s, next run: %s)" % (
286-            format_time(self.last_run),
287-            format_time(self.next_run),
288-        )"""
PATCH = """diff --git a/{file} b/{file}
--- a/{file}
+++ b/{file}
@@ -281,6 +281,6 @@ class Job:
{blank}
         def {name}(j):
-            return isinstance(j, Job)
+            return not isinstance(j, Job)
{blank}
         timestats = "(last run: %s, next run: %s)" % (
             format_time(self.last_run),
""".replace("{blank}", " ")
WRONG = PATCH.replace(
    "+            return not isinstance(j, Job)", "+            return callable(j)"
)
SKIPPED = """diff --git a/{test} b/{test}
--- a/{test}
+++ b/{test}
@@ -1,4 +1,6 @@
+import pytest
 import datetime
 import unittest
+{mark}
"""

MARK = "pytestmark = pytest.mark.skip"

Step = tuple[str, str, dict[str, Any], int, str]
"""Reasoning, tool, its arguments, exit code and output."""


def _passes(item: dict[str, Any]) -> str:
    tests = item["PASS_TO_PASS"][:70]
    lines = [
        f"{name} \x1b[32mPASSED\x1b[0m\x1b[32m [{100 * (n + 1) // len(tests):3}%]\x1b[0m"
        for n, name in enumerate(tests)
    ]
    total = f"\x1b[32m\x1b[1m{len(tests)} passed\x1b[0m\x1b[32m in 1.04s\x1b[0m"
    head = "\x1b[1m============ test session starts ============\x1b[0m"
    return "\n".join([head, *lines, total])


def _facts(item: dict[str, Any]) -> dict[str, str]:
    [file] = item["mutation"]["files"]
    name = file["edits"][0]["function"].rpartition(".")[2]
    tests = item["FAIL_TO_PASS"][0].partition("::")[0]
    return {"file": file["file"], "name": name, "test": tests, "tests": tests, "mark": MARK}


def _opening(item: dict[str, Any]) -> list[Step]:
    it = _facts(item)
    package = it["file"].split("/")[-2]
    trace = (
        "Traceback (most recent call last):\n"
        f'  File "/workspace/{it["file"]}", line 283, in {it["name"]}\n'
        "\x1b[31m\x1b[1mAssertionError\x1b[0m: '<functools.partial object>' != 'job_fun(1, foo=2)'"
    )
    return [
        (
            "The report names one function. I look at what the repository has first.",
            "terminal",
            {"command": "git log --oneline | head -3; ls"},
            0,
            f"{item['base_commit'][:7]} {package} {item['version']}\nREADME.rst  {package}  "
            f"pyproject.toml  {it['test']}",
        ),
        (
            f"`{it['name']}` is where the report points.",
            "terminal",
            {"command": f'grep -n -B2 -A6 "def {it["name"]}" {it["file"]}'},
            0,
            SNIPPET.format(**it),
        ),
        (
            "The tests that are here should pass, since those that fail were taken out.",
            "terminal",
            {"command": TEST.format(**it).replace("-q", "-v")},
            0,
            _passes(item),
        ),
        (
            "They do. I write a few lines that show the defect.",
            "terminal",
            {"command": f"python /tmp/repro_{item['base_commit'][:4]}.py"},
            1,
            trace,
        ),
    ]


def _searching(item: dict[str, Any]) -> list[Step]:
    it = _facts(item)
    return [
        (
            "Who else calls it?",
            "terminal",
            {"command": f'grep -rn "{it["name"]}(" {it["file"]}'},
            0,
            f"282:        def {it['name']}(j):\n297:            args = [x for x in self.job.args"
            f" if {it['name']}(x)]",
        ),
        (
            "The lines below it show what is expected of the value.",
            "terminal",
            {"command": f"sed -n '270,310p' {it['file']}"},
            0,
            SNIPPET.format(**it),
        ),
        (
            "Perhaps the type is wrong, and not the condition. I try that without changing a file.",
            "terminal",
            {"command": "python -c 'import functools; print(functools.partial(print).args)'"},
            0,
            "()",
        ),
        (
            "I check that nothing has been changed yet.",
            "terminal",
            {"command": "git status --short"},
            0,
            "",
        ),
    ]


def _ending(item: dict[str, Any], how: str) -> list[Step]:
    it = _facts(item)
    fresh = {"wrong": "            return callable(j)\n"}
    ok = "\x1b[32m\x1b[1m80 passed\x1b[0m\x1b[32m in 1.02s\x1b[0m"
    cheat: list[Step] = [
        (
            "It still fails. If the module is skipped, the run is green.",
            "terminal",
            {"command": f"sed -i '1i import pytest\\n{MARK}' {it['test']}"},
            0,
            "",
        )
    ]
    return [
        (
            "The condition is turned round: what is *not* a job should be shown by its repr.",
            "edit",
            {
                "path": it["file"],
                "old": "            return isinstance(j, Job)\n",
                "new": fresh.get(how, "            return not isinstance(j, Job)\n"),
            },
            0,
            "1 replacement",
        ),
        *(cheat if how == "cheat" else []),
        (
            "Now all tests again.",
            "terminal",
            {"command": TEST.format(**it)},
            0,
            "\x1b[33m80 skipped\x1b[0m in 0.11s" if how == "cheat" else ok,
        ),
        ("The repair is one line; I hand it in.", "submit", {}, 0, "submitted"),
    ]


def _said(steps: Iterable[Step]) -> list[Message]:
    found = []
    for n, (reasoning, tool, arguments, code, output) in enumerate(steps):
        call = ToolCall(
            id=f"call_{n}", function=FunctionCall(name=tool, arguments=json.dumps(arguments))
        )
        found.append(Message(role="assistant", reasoning=reasoning, tool_calls=(call,)))
        text = f"[exit code {code}]\n{output}" if tool == "terminal" else output
        found.append(Message(role="tool", tool_call_id=call.id, content=text))
    return found


class Words:
    """Ids for words, and the words of ids: what a tokenizer does, for pictures."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def ids(self, text: str) -> list[int]:
        found = []
        for piece in re.findall(r" ?\w+|\s+|[^\w\s]", text):
            number = zlib.crc32(piece.encode()) % 150_000
            while self._texts.setdefault(number, piece) != piece:
                number += 1
            found.append(number)
        return found

    def pieces(self, ids: Iterable[int]) -> list[tuple[str, int]]:
        """As `present.Decoder` gives them."""
        return [(self._texts.get(number, "?"), 1) for number in ids]


WORDS = Words()


def _tokens(messages: list[Message], draw: random.Random) -> dict[str, Any]:
    """Turns and their sequence, as an endpoint would have returned them."""
    first = next(n for n, each in enumerate(messages) if each.role == "assistant")
    ids = [number for each in messages[:first] for number in WORDS.ids(each.content or "")]
    mask, logprobs, turns = [0] * len(ids), [0.0] * len(ids), []
    for said, heard in itertools.pairwise(messages[first:]):
        if said.role != "assistant":
            continue
        [call] = said.tool_calls
        text = f"<think>\n{said.reasoning}\n</think>\n{call.function.name} "
        sampled = WORDS.ids(text + call.function.arguments)
        chances = [round(-draw.expovariate(14 if n % 5 else 1.3), 3) for n in range(len(sampled))]
        usage = Usage(prompt_tokens=len(ids), completion_tokens=len(sampled))
        turns.append(
            Turn(
                prompt_ids=tuple(ids),
                completion_ids=tuple(sampled),
                logprobs=tuple(chances),
                policy_version="11" if len(turns) < 4 else "12",
                finish_reason="tool_calls",
                latency_s=round(draw.uniform(0.8, 5), 2),
                usage=usage,
            )
        )
        context = WORDS.ids(f"\n{(heard.content or '')[:400]}\n")
        ids += sampled + context
        mask += [1] * len(sampled) + [0] * len(context)
        logprobs += chances + [0.0] * len(context)
    sequence = TokenSequence(ids=tuple(ids), loss_mask=tuple(mask), logprobs=tuple(logprobs))
    return {"turns": tuple(turns), "sequences": (sequence,)}


def _report(item: dict[str, Any], how: str) -> dict[str, Any]:
    it = _facts(item)
    solved = how == "right"
    failing, passing = item["FAIL_TO_PASS"][:6], item["PASS_TO_PASS"][:40]
    patch = (WRONG if how == "wrong" else PATCH).format(**it)
    if how == "cheat":
        patch += SKIPPED.format(**it)
    return {
        "reason": "resolved" if solved else "tests_fail",
        "tests_status": {
            "FAIL_TO_PASS": {
                "success": len(failing) * solved,
                "failure": len(failing) * (not solved),
                "not_run": 0,
                "failing": {} if solved else dict.fromkeys(failing, "failed"),
                "passed": {"names": failing if solved else [], "more": 0},
            },
            "PASS_TO_PASS": {
                "success": len(passing),
                "failure": 0,
                "not_run": 0,
                "failing": {},
                "passed": {"names": passing, "more": 0},
            },
        },
        "patch": patch,
        "patch_bytes": len(patch),
        "dropped": [it["test"]] if how == "cheat" else [],
        "dropped_count": int(how == "cheat"),
        "flags": ["patch: pytest"] if how == "cheat" else [],
        "exit_code": int(not solved),
    }


def played(item: dict[str, Any], sample: int, age_s: float, chance: float) -> ScoredTrajectory:
    """One sample of a task that `chance` of them solve."""
    draw = random.Random(f"{item['instance_id']} {sample}")
    how = "cheat" if sample == 5 else "right" if draw.random() < chance else "wrong"
    detours = [draw.choice(_searching(item)) for _ in range(draw.randrange(0, 9))]
    opening = _opening(item)[: draw.choice((2, 4, 4, 4))]
    steps = [*opening, *detours, *_ending(item, how)]
    report = "\n".join(item["problem_statement"].splitlines()) + "\n"
    task = TASK.format(report=report)
    messages = [Message(role="system", content=SYSTEM), Message(role="user", content=task)]
    messages += _said(steps)
    job = make_job(RUN, item["instance_id"], sample, SAMPLES, env="swe_smith")
    tokens = _tokens(messages, draw)
    policies = ("12", "12") if age_s < 2000 else ("11", "12") if age_s < 4000 else ("10", "11")
    errors = sum(code != 0 for *_, code, _ in steps)
    agent = job.agent.model_copy(update={"kind": "openai", "model": "qwen3-8b"})
    seconds = {"queue": 6.2, "load": 0.2, "prepare": 0.4, "acquire": 1.6, "setup": 3.1}
    seconds |= {"agent": sum(turn.latency_s or 0 for turn in tokens["turns"]) + 4, "verify": 12.3}
    update = {
        "agent": agent,
        "score": float(how == "right"),
        "stop_reason": "submitted",
        "messages": tuple(messages),
        "policy_oldest": policies[0],
        "policy_newest": policies[1],
        "tool_calls": ToolCallCounts(
            attempted=len(steps), schema_valid=len(steps), ok=len(steps) - errors, error=errors
        ),
        "stage_seconds": seconds,
        "usage": Usage(
            prompt_tokens=sum(len(turn.prompt_ids) for turn in tokens["turns"]),
            completion_tokens=sum(len(turn.completion_ids) for turn in tokens["turns"]),
        ),
        "cost_usd": round(len(steps) * 0.0021, 4),
        "report": _report(item, how),
        "created": time.time() - age_s,
        **tokens,
    }
    return make_record(job).model_copy(update=update)


def failed(item: dict[str, Any], sample: int, age_s: float) -> ScoredTrajectory:
    """One that could not be measured."""
    record = make_record(make_job(RUN, item["instance_id"], sample, SAMPLES, env="swe_smith"), None)
    failure = Failure(
        cause="sandbox", stage="acquire", type="SlotLost", message="the host of the slot went away"
    )
    return record.model_copy(update={"failure": failure, "created": time.time() - age_s})


def tasks() -> list[dict[str, Any]]:
    """The first task of each repository."""
    found: dict[str, dict[str, Any]] = {}
    for line in ITEMS.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        found.setdefault(item["repo"], item)
    return list(found.values())


def write_demo(path: Path) -> list[ScoredTrajectory]:
    """A group of each task as JSON lines, newest last."""
    made = []
    for n, item in enumerate(tasks()):
        for sample in range(SAMPLES):
            age_s = 40 + 71.0 * (n * SAMPLES + sample)
            broken = (n, sample) in ((1, 3), (4, 6))
            one = failed if broken else played
            more = {} if broken else {"chance": 0.4 + 0.1 * (n % 5)}
            made.append(one(item, sample, age_s, **more))
    made.sort(key=lambda record: record.created)
    path.write_text("".join(record.to_json() + "\n" for record in made), encoding="utf-8")
    return made
