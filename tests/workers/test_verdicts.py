"""What an environment says is taken in a form that every record can hold, or it is a bug of it."""

from __future__ import annotations

import json
import types
from fractions import Fraction
from typing import Any

import pytest

from envs.base import Verdict
from envs.gsm8k import ENV
from envs.prompts import ENV as PROMPTS
from hermes_queue.errors import EnvBug
from workers.verdicts import REPORT_MAX_VALUES, checked_verdict, checked_version


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (None, "must return a Verdict, not NoneType"),
        (Verdict("1.0"), "Verdict.score must be a number, not a str"),
        (Verdict(None), "Verdict.score must be a number, not a NoneType"),
        (Verdict(float("nan")), "Verdict.score must be a finite number"),
        (Verdict(10**400), "Verdict.score must be a number"),
        (Verdict(1.0, rewards={"x": float("inf")}), r"rewards\['x'\] must be a finite number"),
        (Verdict(1.0, rewards={1: 1.0}), r"Verdict.rewards has a key that is not text, 1: use"),
        (Verdict(1.0, rewards=None), "Verdict.rewards must be a mapping, not NoneType"),
        (Verdict(1.0, report=None), "Verdict.report must be a mapping, not NoneType"),
        (Verdict(1.0, report={1: "passed"}), "Verdict.report has a key that is not text, 1"),
        (Verdict(1.0, report={"a": {2: 3}}), r"report\['a'\] has a key that is not text, 2: use"),
        (Verdict(1.0, report={"n": 2**70}), r"report\['n'\] is an integer of more than 64 bits"),
        (Verdict(1.0, report={"s": {1}}), r"report\['s'\] is a set, which JSON does not have"),
        (Verdict(1.0, report={"d": json.loads("[" * 600 + "]" * 600)}), "is nested deeper than"),
        (Verdict(1.0, report={"d": [None] * REPORT_MAX_VALUES}), "has more than 1000000 values"),
    ],
)
def test_a_verdict_that_no_record_can_hold_is_a_bug_that_names_the_place(
    verdict: Any, expected: str
) -> None:
    with pytest.raises(EnvBug, match=expected):
        checked_verdict(verdict, ENV)


def test_a_verdict_becomes_plain_values_that_its_environment_changes_no_more() -> None:
    report = {"found": ["\ud800", (1, 2.5, None, True)], "more": types.MappingProxyType({"a": 1})}
    checked = checked_verdict(Verdict(Fraction(1, 2), {"speed": True}, report), ENV)  # type: ignore[arg-type]
    report["found"].append("late")  # type: ignore[attr-defined]
    assert checked == Verdict(
        0.5, {"speed": 1.0}, {"found": ["\\ud800", [1, 2.5, None, True]], "more": {"a": 1}}
    )


def test_only_an_env_without_a_verifier_gives_no_score_and_it_gives_none() -> None:
    assert checked_verdict(Verdict(None, {}, {"reason": "no_verifier"}), PROMPTS).score is None
    with pytest.raises(EnvBug, match="env prompts is declared `unscored`: its verdicts must have"):
        checked_verdict(Verdict(0.0), PROMPTS)


def test_a_version_that_is_no_text_is_a_bug_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked_version(ENV, "gsm8k") == ENV.version
    monkeypatch.setattr(type(ENV), "version", 3)
    with pytest.raises(EnvBug, match=r'env gsm8k: version must be text, e[.]g[.] "3", not 3'):
        checked_version(ENV, "gsm8k")


@pytest.mark.parametrize("unscored", [False, None, "no"])
def test_an_env_that_says_it_is_scored_gives_scores(unscored: Any) -> None:
    env = types.SimpleNamespace(name="own", unscored=unscored)
    assert checked_verdict(Verdict(0.5), env).score == 0.5  # type: ignore[arg-type]
    with pytest.raises(EnvBug, match=r"Verdict\.score must be a number"):
        checked_verdict(Verdict(None), env)  # type: ignore[arg-type]
