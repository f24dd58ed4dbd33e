"""The samples of a group side by side: aligned by actions, tests, patches, first difference."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from hermes_plugins.view.compare import compare, patch_against, patching
from hermes_plugins.view.compare.alignment import aligned, common
from hermes_plugins.view.compare.samples import normalised


def sample(number: int, *commands: str, score: float | None = None, **more: Any) -> dict[str, Any]:
    """A record whose agent ran these commands."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "repair it"}]
    for place, command in enumerate(commands):
        function = {"name": "terminal", "arguments": json.dumps({"command": command})}
        call = {"id": f"{number}-{place}", "type": "function", "function": function}
        messages.append({"role": "assistant", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "[exit code 0]"})
    return {"trajectory_id": f"r.g.{number}", "score": score, "messages": messages, **more}


def table(found: dict[str, Any]) -> list[str]:
    """Each row as its argument and the columns that have it."""
    return [
        f"{row['argument']} {[n for n, at in enumerate(row['messages']) if at is not None]}"
        for row in found["rows"]
    ]


def longest(first: list[int], second: list[int]) -> int:
    lengths = [0] * (len(second) + 1)
    for one in first:
        before = lengths[:]
        for place, other in enumerate(second):
            more = before[place] + 1 if one == other else 0
            lengths[place + 1] = max(more, before[place + 1], lengths[place])
    return lengths[-1]


def test_an_alignment_has_as_many_pairs_as_there_can_be():
    rng = random.Random(18)
    for _ in range(200):
        first = rng.choices(range(5), k=rng.randrange(14))
        second = rng.choices(range(5), k=rng.randrange(14))
        pairs = common(first, second)
        assert all(first[here] == second[there] for here, there in pairs)
        assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(pairs))
        assert len(pairs) == longest(first, second)


def test_every_step_of_every_sample_has_one_row_and_keeps_its_order():
    rng = random.Random(18)
    for _ in range(50):
        samples = [rng.choices("abcd", k=rng.randrange(12)) for _ in range(4)]
        rows = aligned(samples, rng.randrange(4))
        for number, steps in enumerate(samples):
            mine = [(row.places[number], row.step) for row in rows if number in row.places]
            assert mine == list(enumerate(steps))


def test_what_samples_do_alike_stands_in_one_row_beside_what_the_reference_does():
    found = compare(
        [
            sample(0, "grep foo", "open a.py", "pytest", score=0.0),
            sample(1, "grep foo", "open b.py", "pytest", score=1.0),
            sample(2, "ls", "grep foo", "open a.py", "pytest", score=0.0),
        ]
    )
    assert found["reference"] == 1
    assert table(found) == [
        "ls [2]",
        "grep foo [0, 1, 2]",
        "open b.py [1]",
        "open a.py [0, 2]",
        "pytest [0, 1, 2]",
    ]
    assert [(each["shared"], each["parts_at"]) for each in found["samples"]] == [
        (2, 2),
        (3, None),
        (2, 0),
    ]
    assert [(row["passing"], row["failing"]) for row in found["rows"]] == [
        (0, 1),
        (1, 2),
        (1, 0),
        (0, 2),
        (1, 2),
    ]
    assert found["rows"][1]["messages"] == [1, 1, 3]


def test_rows_that_all_samples_share_are_folded():
    found = compare([sample(n, "a", "b", "c", f"own {n}", "d", score=1.0) for n in range(3)])
    assert found["folds"] == [(0, 2)]


@pytest.mark.parametrize(
    ("argument", "step"),
    [
        ("cd /workspace && python  ./x.py /tmp/a81.log", "python x.py /tmp/*.log"),
        ("cat /workspace/src/a.py", "cat src/a.py"),
        ("git show 0123abcd9", "git show #"),
        ("kill 12345", "kill #"),
        ("sed -n '1,40p' a.py", "sed -n '1,40p' a.py"),
        ("echo a\n  echo b", "echo a echo b"),
        ("echo \x1b[2J", "echo ␛[2J"),
    ],
)
def test_names_that_differ_for_no_reason_do_not_make_another_step(argument, step):
    assert normalised(argument) == step


def test_replies_without_a_call_are_steps_by_their_last_line():
    replies = [
        {"messages": [{"role": "assistant", "content": f"{n} reasons\nso \\boxed{{42}}"}]}
        for n in range(2)
    ]
    assert table(compare(replies)) == ["so \\boxed{42} [0, 1]"]


def test_samples_part_at_the_first_token_that_differs():
    def tokens(*ids: int) -> dict[str, Any]:
        turns = [{"prompt_ids": ids[:2], "completion_ids": ids[2:]}]
        return {"sequences": [{"ids": list(ids)}], "turns": turns}

    found = compare(
        [tokens(1, 2, 3, 4), tokens(1, 2, 3, 5), tokens(1, 2, 3, 4), tokens(1, 2, 3)], reference=0
    )
    assert [each["parting"] for each in found["samples"]] == [
        None,
        {"by": "ids", "at": 3, "of": 4, "turn": 0},
        {"by": "ids", "at": None, "of": 4, "turn": None},
        {"by": "ids", "at": 3, "of": 4, "turn": None},
    ]


def test_without_token_ids_samples_part_at_the_first_message_whatever_ids_their_calls_have():
    found = compare([sample(0, "a", "b"), sample(1, "a", "c"), sample(2, "a", "b")], reference=0)
    assert [each["parting"]["at"] for each in found["samples"][1:]] == [3, None]
    assert found["samples"][1]["parting"]["by"] == "messages"


def test_a_test_that_a_complete_report_does_not_name_as_failed_has_passed():
    def report(failing: dict[str, str], failure: int, not_run: int, **more: Any) -> dict[str, Any]:
        counts = {"success": 1, "failure": failure, "not_run": not_run, "failing": failing}
        return {"report": {"tests_status": {"FAIL_TO_PASS": counts | more}}}

    found = compare(
        [
            report({"t1": "failed", "t2": "error"}, 2, 0),
            report({}, 0, 0),
            report({"t1": "failed"}, 5, 0),
            report({}, 0, 3),
            report({}, 0, 3, passed={"names": ["t2"], "more": 7}),
            {},
        ]
    )
    assert [(row["test"], row["cells"]) for row in found["tests"]["rows"]] == [
        ("t1", ["failed", "passed", "failed", None, None, None]),
        ("t2", ["error", "passed", None, None, "passed", None]),
    ]


def test_equal_patches_are_named_and_two_are_shown_against_each_other():
    def patch(*lines: str) -> dict[str, Any]:
        head = ["diff --git a/x.py b/x.py", "--- a/x.py", "+++ b/x.py", "@@ -1 +1 @@"]
        return {"report": {"patch": "\n".join([*head, *lines])}}

    records = [patch("-a", "+b"), patch("-a", "+c"), patch("-a", "+b"), {}]
    patches = [each["patch"] for each in compare(records)["samples"]]
    assert [each and (each["files"], each["like"]) for each in patches] == [
        (["x.py"], None),
        (["x.py"], None),
        (["x.py"], 0),
        None,
    ]
    found = patch_against(records[0], records[1])
    assert [(sign, line["text"]) for sign, line in found["lines"] if sign != "="] == [
        ("-", "+b"),
        ("+", "+c"),
    ]
    assert patch_against(records[0], records[2])["same"]


def test_of_a_patch_of_very_many_lines_no_more_are_made_than_are_compared(monkeypatch):
    made = []
    lines = patching.lines_of

    def counted(text: str) -> Any:
        for line in lines(text):
            made.append(line)
            yield line

    monkeypatch.setattr(patching, "lines_of", counted)
    long = {"report": {"patch": "+x\n" * 100_000}}
    assert patch_against(long, {})["cut"]
    assert len(made) == patching.LINES_MOST + 1


def test_a_group_of_no_samples_has_no_rows():
    assert compare([])["samples"] == []
