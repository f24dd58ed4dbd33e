"""An env whose tasks have three steps: `stepped_env:ENV`, and what goes wrong in them."""

from __future__ import annotations

from envs.base import Verdict
from envs.gsm8k import Gsm8k
from hermes_queue.errors import EnvInfraError
from hermes_queue.models import Message
from hermes_queue.tools.base import make_call


class Stepped(Gsm8k):
    tools = ("terminal", "submit")
    spoiled_at: int | None = None
    least = 0.0

    def steps(self, item):
        return [(number, item) for number in range(3)]

    def prompt(self, step):
        return [Message(role="user", content=f"instruction {step[0]}")]

    def spec(self, step, profile):
        return super().spec(step[1], profile)

    async def setup(self, step, context):
        assert step[0] == 0

    def step_limit_s(self, step):
        return None

    def goes_on(self, step, verdict):
        return verdict.score >= self.least

    async def begin_step(self, step, context):
        return Verdict(0.0, report={"reason": "spoiled"}) if step[0] == self.spoiled_at else None

    async def verify(self, step, context, transcript):
        return Verdict(float(step[0] + 1))

    def total(self, steps, verdicts):
        scores = [verdict.score for verdict in verdicts]
        return Verdict(sum(scores), report={"scores": scores, "of": len(steps)})

    async def oracle(self, step, context):
        return [
            make_call("a", "terminal", command=f"solve {step[0]}"),
            make_call("b", "submit"),
        ]

    def oracle_answer(self, step):
        return "Done."

    def tamper(self, step):
        return {}


class _FailsInTheSecond(Stepped):
    async def verify(self, step, context, transcript):
        if step[0] == 1:
            raise EnvInfraError("the tests cannot run")
        return Verdict(1.0)


class _Spoiled(Stepped):
    spoiled_at = 1


class _Gated(Stepped):
    least = 2.0


class _Hurried(Stepped):
    """Leaves no time after the first step."""

    def step_limit_s(self, step):
        return 0.0 if step[0] else None


class _EndsItself(Stepped):
    """What its agent leaves ends the slot in which the second step begins, or is graded."""

    def __init__(self, place):
        self.place = place

    async def begin_step(self, step, context):
        if self.place == "setup":
            await context.run("end it")

    async def verify(self, step, context, transcript):
        if self.place == "verify" and step[0] == 1:
            await context.run("end it")
        return await super().verify(step, context, transcript)


ENV = Stepped()
ENDS_IN_SETUP, ENDS_IN_VERIFY = _EndsItself("setup"), _EndsItself("verify")
FAILS_IN_THE_SECOND = _FailsInTheSecond()
SPOILED = _Spoiled()
GATED = _Gated()
HURRIED = _Hurried()
