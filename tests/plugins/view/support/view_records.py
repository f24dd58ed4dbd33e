"""Records for the viewer's pages: a run of coding tasks, one hostile record, one of many tokens."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

from records import make_job, make_record

from hermes_queue.models import (
    AttemptRecord,
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

RUN, GROUPS, SAMPLES = "grpo-qwen3-8b", 12, 8
HOSTILE_RUN, MANY_RUN, MANY = "hostile", "many", 230
TURN_TOKENS, TOKENS = 300, 32_000
NOW = time.time()

HOSTILE_TEXTS = (
    "<script>window.ran = 1; fetch('https://elsewhere.example/')</script>",
    "<img src=https://elsewhere.example/x.png onerror='window.ran = 1'>",
    "</pre></article><iframe src=javascript:window.ran=1></iframe>",
    "[link](javascript:window.ran=1) ![x](https://elsewhere.example/y.png)",
    "${window.ran = 1} {{constructor.constructor('window.ran=1')()}}",
    "\x1b]0;title\x07\x1b[31mred\x1b[0m \x1b[2Jcleared",
    "user\u202egnp.exe \u200bzero\u2060width\ufeff \u061c",
    '{"dangerouslySetInnerHTML": {"__html": "<script>window.ran=1</script>"}}',
)
OUTPUT = (
    "\x1b[1m===== test session starts =====\x1b[0m\ncollected {n} items\n\n"
    "tests/test_parse.py \x1b[32m......\x1b[0m\x1b[31mF\x1b[0m\x1b[32m....\x1b[0m\n\n"
    "\x1b[31m\x1b[1mFAILED\x1b[0m tests/test_parse.py::test_none - assert None == []\n"
    "\x1b[31m1 failed\x1b[0m, \x1b[32m{n} passed\x1b[0m in 0.42s\n"
)
PATCH = """diff --git a/src/parse.py b/src/parse.py
--- a/src/parse.py
+++ b/src/parse.py
@@ -10,7 +10,9 @@ def parse(text):
     if text is None:
-        return None
+        # An empty document has no items.
+        return []
+
     items = []
     for line in text.splitlines():
         items.append(line.strip())
"""
TEST_PATCH = """diff --git a/tests/test_parse.py b/tests/test_parse.py
new file mode 100644
--- /dev/null
+++ b/tests/test_parse.py
@@ -0,0 +1,2 @@
+def test_nothing():
+    assert True
"""


def _call(n: int, name: str, **arguments: Any) -> ToolCall:
    function = FunctionCall(name=name, arguments=json.dumps(arguments))
    return ToolCall(id=f"call_{n}", function=function)


def _steps(turns: int, draw: random.Random) -> list[Message]:
    """What an agent did: `turns` calls, each with its output."""
    found = []
    for n in range(turns):
        if n % 4 == 2:
            call = _call(
                n,
                "edit",
                path="src/parse.py",
                old="        return None\n",
                new="        return []\n\n",
            )
        else:
            command = draw.choice(
                ("pytest -x -q", "grep -rn 'def parse' src", "sed -n '1,80p' src/parse.py")
            )
            call = _call(n, "terminal", command=command)
        reasoning = "The test fails because `parse` returns None when the text is empty. " * (
            1 + n % 3
        )
        text = "Let me look at the tests." if n % 5 == 0 else None
        found.append(
            Message(role="assistant", content=text, reasoning=reasoning, tool_calls=(call,))
        )
        code = 0 if n % 6 != 3 else 1
        body = OUTPUT.replace("{n}", str(10 + n))
        if n % 7 == 5:
            body = "\n".join(
                f"src/module_{line}.py:{line}: value = {line * line}" for line in range(90)
            )
        found.append(
            Message(role="tool", tool_call_id=call.id, content=f"[exit code {code}]\n{body}")
        )
    return found


def _tokens(turns: int, draw: random.Random) -> tuple[tuple[Turn, ...], tuple[TokenSequence, ...]]:
    ids: list[int] = [draw.randrange(50_000) for _ in range(180)]
    mask, logprobs = [0] * len(ids), [0.0] * len(ids)
    made = []
    for n in range(turns):
        prompt = tuple(ids)
        size = draw.randrange(20, 60)
        sampled = [draw.randrange(50_000) for _ in range(size)]
        chances = [round(-draw.expovariate(2.5), 3) for _ in range(size)]
        made.append(
            Turn(
                prompt_ids=prompt,
                completion_ids=tuple(sampled),
                logprobs=tuple(chances),
                policy_version="11" if n < turns / 2 else "12",
                finish_reason="tool_calls",
                latency_s=round(draw.uniform(0.5, 6), 2),
                usage=Usage(prompt_tokens=len(prompt), completion_tokens=size),
            )
        )
        context = [draw.randrange(50_000) for _ in range(draw.randrange(20, 80))]
        ids += sampled + context
        mask += [1] * size + [0] * len(context)
        logprobs += chances + [0.0] * len(context)
    return tuple(made), (
        TokenSequence(ids=tuple(ids), loss_mask=tuple(mask), logprobs=tuple(logprobs)),
    )


def _report(solved: bool, tampered: bool, turns: int) -> dict[str, Any]:
    failing = {} if solved else {"tests/test_parse.py::test_none": "failed"}
    passed = [f"tests/test_parse.py::test_{name}" for name in ("empty", "lines", "strip", "tabs")]
    return {
        "reason": "resolved" if solved else "tests_fail",
        "tests_status": {
            "FAIL_TO_PASS": {
                "success": int(solved),
                "failure": int(not solved),
                "not_run": 0,
                "failing": failing,
            },
            "PASS_TO_PASS": {
                "success": len(passed),
                "failure": 0,
                "not_run": 0,
                "failing": {},
                "passed": passed,
            },
        },
        "output_tail": OUTPUT.replace("{n}", "24"),
        "patch": PATCH + (TEST_PATCH if tampered else ""),
        "patch_bytes": len(PATCH),
        "dropped": ["tests/test_parse.py"] if tampered else [],
        "dropped_count": int(tampered),
        "flags": ["conftest"] if tampered else [],
        "wall_s": 12.25,
        "settings": {"pytest_args": ["-q"], "timeout_s": 900},
    }


def _coding(group: int, sample: int) -> ScoredTrajectory:
    """One sample of a coding task."""
    draw = random.Random(group * 100 + sample)
    job = make_job(RUN, f"owner__repo-{400 + group}", sample, SAMPLES, env="swe_smith")
    finished = NOW - 60 * (group * SAMPLES + sample)
    if (group, sample) in ((1, 3), (4, 0)):
        failed = make_record(job, None)
        return failed.model_copy(update={"created": finished})
    solved = draw.random() < 0.15 + 0.06 * group
    partial = not solved and draw.random() < 0.15
    tampered = not solved and sample == 5
    turns = draw.randrange(4, 34)
    made, sequences = _tokens(turns, draw)
    retried = AttemptRecord(
        attempt=1,
        epoch=1,
        failure=Failure(
            cause="sandbox", stage="setup", type="SlotLost", message="the slot's host went away"
        ),
        stage_seconds={"prepare": 2.0, "setup": 3.5},
        worker="trainer-1",
        begun_at=finished - 300,
    )
    task = Message(
        role="user", content="The bug: `parse(None)` returns None, but callers iterate over it."
    )
    update = {
        "agent": job.agent.model_copy(update={"kind": "openai", "model": "qwen3-8b"}),
        "score": 1.0 if solved else 0.5 if partial else 0.0,
        "stop_reason": "submitted" if turns < 30 else "max_turns",
        "messages": (
            Message(role="system", content="You repair bugs. " * 60),
            task,
            *_steps(turns, draw),
        ),
        "turns": made,
        "sequences": sequences,
        "events": (
            {"event": "context_rewrite", "policy": "truncate_tools", "reason": "window", "turn": 3},
        ),
        "policy_oldest": "11",
        "policy_newest": "12",
        "attempt": 2 if sample == 2 else 1,
        "attempts": (retried,) if sample == 2 else (),
        "tool_calls": ToolCallCounts(
            attempted=turns, schema_valid=turns, ok=turns - turns // 6, error=turns // 6
        ),
        "stage_seconds": {
            "queue": 4.0,
            "load": 0.1,
            "prepare": 2.0,
            "acquire": 0.1,
            "setup": 4.5,
            "agent": turns * 2.1,
            "verify": 12.2,
        },
        "usage": Usage(prompt_tokens=turns * 4_000, completion_tokens=turns * 212),
        "cost_usd": round(turns * 0.0013, 4),
        "report": _report(solved, tampered, turns),
        "created": finished,
    }
    return make_record(job).model_copy(update=update)


def _hostile() -> ScoredTrajectory:
    """Every text of it tries something."""
    job = make_job(HOSTILE_RUN, "hostile-1", 0, 1)
    long = "x" * 5_000_000
    messages = [Message(role="user", content=text) for text in HOSTILE_TEXTS]
    for n, text in enumerate(HOSTILE_TEXTS):
        call = ToolCall(
            id=f"c{n}",
            function=FunctionCall(name=f"<b>{n}</b>", arguments=json.dumps({"command": text})),
        )
        messages.append(Message(role="assistant", reasoning=text, content=text, tool_calls=(call,)))
        messages.append(Message(role="tool", tool_call_id=call.id, content=text))
    messages.append(Message(role="tool", tool_call_id="long", content=long))
    report = {
        "reason": HOSTILE_TEXTS[0],
        "patch": PATCH.replace("src/parse.py", "src/<img src=x onerror=window.ran=1>.py"),
        "output_tail": "\n".join(HOSTILE_TEXTS),
        "dropped": list(HOSTILE_TEXTS),
        HOSTILE_TEXTS[1]: {text: text for text in HOSTILE_TEXTS},
    }
    events = ({"event": HOSTILE_TEXTS[1], "turn": 0, "detail": HOSTILE_TEXTS[0]},)
    update = {
        "messages": tuple(messages),
        "report": report,
        "events": events,
        "created": NOW - 9_000,
    }
    return make_record(job).model_copy(update=update)


def _long_strip() -> ScoredTrajectory:
    """32,000 tokens in turns of 300."""
    job = make_job("tokens", "strip", 0, 1)
    ids = tuple((7 * n) % 50_000 for n in range(TOKENS))
    mask = tuple(int(n % TURN_TOKENS >= 60) for n in range(TOKENS))
    logprobs = tuple(round(-abs(math.sin(n * 1.3)) * 9, 3) * each for n, each in enumerate(mask))
    sequence = TokenSequence(ids=ids, loss_mask=mask, logprobs=logprobs)
    update = {"sequences": (sequence,), "turns": (), "created": NOW - 12_000}
    return make_record(job).model_copy(update=update)


def _many() -> list[ScoredTrajectory]:
    return [
        make_record(make_job(MANY_RUN, f"item-{n:04d}", 0, 1), n % 3 / 2).model_copy(
            update={"created": NOW - 20_000 - n}
        )
        for n in range(MANY)
    ]


def write_records(path: Path) -> list[ScoredTrajectory]:
    """All of them as JSON lines, newest last, behind a line that is damaged."""
    coding = [_coding(group, sample) for group in range(GROUPS) for sample in range(SAMPLES)]
    found = [*coding, _hostile(), _long_strip(), *_many()]
    found.sort(key=lambda record: record.created)
    with path.open("w", encoding="utf-8") as file:
        file.write('{"trajectory_id": "torn.x.0", "messages": [\n')
        for record in found:
            file.write(record.to_json() + "\n")
    return found


def write_findings(records: list[ScoredTrajectory], path: Path) -> Path:
    """What judges say: of the hostile record in its own words, of a coding one a deep passage."""
    hostile = next(record for record in records if record.run_id == HOSTILE_RUN)
    found = [
        {
            "trajectory_id": hostile.trajectory_id,
            "message": n,
            "quote": text,
            "label": text[:60],
            "by": text[-40:],
            "note": text,
        }
        for n, text in enumerate(HOSTILE_TEXTS)
    ]
    coding = next(r for r in records if r.run_id == RUN and long_outputs(r))
    quote = "src/module_45.py:45: value = 2025"
    for message in (*long_outputs(coding)[:1], 1):
        judged = {"trajectory_id": coding.trajectory_id, "message": message, "quote": quote}
        found.append({**judged, "label": "a passage", "by": "judge"})
    path.write_text("".join(json.dumps(each) + "\n" for each in found), encoding="utf-8")
    return path


def long_outputs(record: ScoredTrajectory) -> list[int]:
    """Messages with an output that is folded in the middle."""
    return [
        n for n, each in enumerate(record.messages) if "src/module_45.py" in (each.content or "")
    ]
