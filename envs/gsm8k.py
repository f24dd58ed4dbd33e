"""Grade-school maths: a word problem, Python in the slot, one number as the answer.

The answer is taken from the agent's last message and compared exactly: no floats, no tolerance.
Nothing in the slot affects the score.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from envs.base import Environment, NotRecorded, Verdict
from envs.written_numbers import MAX_ANSWER_CHARS, parse_number
from hermes_queue.errors import EnvBug
from hermes_queue.models import Message, ScoredTrajectory, ToolCall
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.tools.base import make_call

SYSTEM_PROMPT = """\
You solve maths word problems. Work step by step and let tools do the arithmetic: \
`calculator`, or `terminal` with python3 -c "print(...)". When you are sure, answer \
without calling a tool and end with the result as one plain number in \\boxed{}."""

TASK = """\
Solve this maths word problem. Work step by step; python3 can do the arithmetic. Nothing has to be \
left in files: end your last message with the result as one plain number in \\boxed{{}}.

{question}
"""

MAX_FINALS = 50
"""Number of places marked `####` that are read, the last ones."""

_ANNOTATION = re.compile(r"<<([^<>=]+)=[^<>]*>>")
_ARITHMETIC = re.compile(r"[0-9+\-*/(). ]{1,200}")
_FINAL = re.compile(r"(?<!#)####(?!#)([^\n]*)")
_BOX = re.compile(r"\\f?box(?:ed)?\s*(?:(?P<open>\{)|(?P<bare>[-+]?[0-9][0-9.,]*))")


class Gsm8kItem(BaseModel):
    """A row of GSM8K; other columns are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    question: str
    answer: str
    """Worked solution with `<<a=b>>` annotations, ending in `#### N`."""
    instance_id: str = Field(min_length=1)
    """Derived from the question if the row has none."""

    @model_validator(mode="before")
    @classmethod
    def _identify(cls, row: Any) -> Any:
        if isinstance(row, Mapping) and not row.get("instance_id"):
            digest = hashlib.sha256(str(row.get("question")).encode(errors="replace")).hexdigest()
            return {**row, "instance_id": f"gsm8k-{digest[:16]}"}
        return row

    @field_validator("question")
    @classmethod
    def _is_not_blank(cls, question: str) -> str:
        if not question.strip():
            raise ValueError("is blank")
        return question

    @field_validator("answer")
    @classmethod
    def _ends_in_a_number(cls, answer: str) -> str:
        finals = _FINAL.findall(answer)
        if not finals or parse_number(finals[-1]) is None:
            raise ValueError("must end in a line '#### N' with N a number")
        return answer

    @property
    def gold(self) -> Fraction:
        """The right answer."""
        number = parse_number(self.gold_text)
        if number is None:
            raise AssertionError("validated above")
        return number

    @property
    def gold_text(self) -> str:
        """The right answer as written in the row."""
        final: str = _FINAL.findall(self.answer)[-1]
        return final.strip()


def extract_answer(text: str) -> str | None:
    r"""What `text` states as its answer; None if it states none.

    That is the last `\boxed{...}`, or a number after a later `####`. Other text after `####` is a
    heading; without a box it is the answer, such as it is.
    """
    box = next(iter(deque(_BOX.finditer(text), maxlen=1)), None)
    later = text[box.start() :] if box else text
    finals = deque(_FINAL.finditer(later), maxlen=MAX_FINALS)
    numbers = [final for final in finals if parse_number(final[1]) is not None]
    if numbers or (finals and box is None):
        return (numbers or finals)[-1][1].strip()
    if box is None:
        return None
    return _braced(text, box.end()) if box["open"] else box["bare"]


def _braced(text: str, start: int) -> str | None:
    """The text from `start` to its closing brace; None if there is none within the length limit."""
    depth = 1
    for position in range(start, min(len(text), start + MAX_ANSWER_CHARS + 1)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position].strip()
    return None


class Gsm8k:
    """The env of GSM8K, see the module's docstring."""

    name: ClassVar[str] = "gsm8k"
    version: ClassVar[str] = "2"
    tools: ClassVar[Sequence[str]] = ("terminal", "calculator")
    Item = Gsm8kItem

    def prompt(self, item: Gsm8kItem) -> list[Message]:
        """Instructions, then the question."""
        return [
            Message(role="system", content=SYSTEM_PROMPT),
            Message(role="user", content=item.question),
        ]

    def task(self, item: Gsm8kItem) -> str:
        """The same for a program with tools of its own."""
        return TASK.format(question=item.question)

    def spec(self, item: Gsm8kItem, profile: str) -> SlotSpec:
        """Any slot with a python3."""
        return SlotSpec(profile=profile)

    async def setup(self, item: Gsm8kItem, context: SlotContext) -> None:
        """Leave the workspace empty."""

    async def verify(
        self, item: Gsm8kItem, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        """1.0 if the answer in the last message equals the gold number, else 0.0."""
        texts = (m.content for m in reversed(transcript) if m.role == "assistant" and m.content)
        answer = extract_answer(next(texts, ""))
        number = None if answer is None else parse_number(answer)
        if answer is None:
            reason = "no_answer"
        elif number is None:
            reason = "not_one_number"
        else:
            reason = "right" if number == item.gold else "wrong"
        shown = None if answer is None else answer[:MAX_ANSWER_CHARS]
        report = {"reason": reason, "answer": shown, "gold": item.gold_text}
        return Verdict(score=float(reason == "right"), report=report)

    def outcome(self, record: ScoredTrajectory) -> Mapping[str, Any]:
        """The message in which `verify` has looked for the answer."""
        own = [message for message in record.messages if message.role == "assistant"]
        if record.program:  # what it wrote itself counts for nothing
            sampled = {node.message for node in record.nodes if node.turn is not None}
            own = [message for message in own if message in sampled]
        if record.program and own and own[-1].tool_calls:
            raise NotRecorded("the program may have answered in a tool call")
        return {"answer": next((m.content for m in reversed(own) if m.content), "")}

    async def put_back(
        self, item: Gsm8kItem, context: SlotContext, outcome: Mapping[str, Any]
    ) -> str:
        """The message is all; nothing in the slot affects the score."""
        answer = outcome.get("answer")
        if not isinstance(answer, str):
            raise EnvBug("the outcome of a regrade has no text `answer`")
        return answer

    async def oracle(self, item: Gsm8kItem, context: SlotContext) -> list[ToolCall]:
        """The solution's own annotations, each calculated in the slot."""
        steps = [step.strip() for step in _ANNOTATION.findall(item.answer)]
        return [
            make_call(f"oracle_{i}", "terminal", command=f"python3 -c 'print({step})'")
            for i, step in enumerate(steps)
            if _ARITHMETIC.fullmatch(step)
        ]

    def oracle_answer(self, item: Gsm8kItem) -> str:
        """The gold answer in a box."""
        return rf"The answer is \boxed{{{item.gold_text}}}."

    def tamper(self, item: Gsm8kItem) -> Mapping[str, Sequence[ToolCall | str]]:
        """Answers that mention the gold number without committing to it, or not in a message."""
        gold, other = item.gold_text, item.gold + 1
        files = f"for f in answer.txt reward.txt score.json; do echo {gold} >$f; done"
        return {
            "all_numbers_in_one_box": [rf"\boxed{{{gold}, {other}, {item.gold + 2}}}"],
            "all_numbers_boxed": [rf"\boxed{{{gold}}} or \boxed{{{other}}}"],
            "alternative_in_the_box": [rf"\boxed{{{gold} or {other}}}"],
            "box_before_the_final_line": [f"\\boxed{{{gold}}}\n#### {other}"],
            "no_box": [f"The answer is {gold}."],
            "percentage": [rf"\boxed{{{gold}\%}}"],
            "thousands": [rf"\boxed{{{gold} thousand}}"],
            "answer_printed_by_a_tool": [
                make_call("tamper_0", "terminal", command=f"echo '#### {gold}'"),
                "The answer is in the output above.",
            ],
            "answer_in_files": [
                make_call("tamper_0", "terminal", command=files),
                "The answer is in answer.txt.",
            ],
        }


ENV: Environment[Gsm8kItem] = Gsm8k()
