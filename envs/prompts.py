"""Plain prompts without a verifier: messages in, a trajectory with tools out, no score.

For data generation: the rows of a batch runner. The score is null by design, and the records are
`unscored`: they are no failures, and no rewards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envs.base import Environment, Verdict
from hermes_queue.models import Message, ToolCall
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.context import SlotContext

MAX_MESSAGES = 200
MAX_PROMPT_CHARS = 1_000_000
"""All texts of a row together."""
TASK_OF_A_CONVERSATION = "Continue this conversation with your answer.\n\n"


class PromptMessage(BaseModel):
    """One message of a row's conversation."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    role: Literal["system", "user", "assistant"]
    content: str


class PromptItem(BaseModel):
    """One row: `prompt`, or `messages`. Columns with other names are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instance_id: str = ""
    """Default: from a hash of the messages, so equal prompts are one instance."""
    prompt: str | None = None
    system: str | None = None
    messages: Annotated[tuple[PromptMessage, ...], Field(max_length=MAX_MESSAGES)] = ()
    response: str = ""
    """What the oracle agent answers; no model sees it."""

    @model_validator(mode="after")
    def _is_a_prompt(self) -> Self:
        if bool(self.prompt) == bool(self.messages):
            raise ValueError("a row needs either `prompt`, a text, or `messages`, a conversation")
        if self.messages and self.system is not None:
            raise ValueError(
                "`system` belongs to `prompt`; put it into `messages` as the first one"
            )
        if self.messages and self.messages[-1].role != "user":
            raise ValueError("the last of `messages` must be of the role user: it is answered")
        if any(message.role == "system" for message in self.messages[1:]):
            raise ValueError("only the first of `messages` may be of the role system")
        if sum(len(message.content) for message in self.conversation) > MAX_PROMPT_CHARS:
            raise ValueError(f"the row's texts have more than {MAX_PROMPT_CHARS} characters")
        if not self.instance_id:
            lines = [f"{each.role}\0{each.content}" for each in self.conversation]
            digest = hashlib.sha256("\0".join(lines).encode(errors="surrogatepass")).hexdigest()
            object.__setattr__(self, "instance_id", f"prompt-{digest[:16]}")
        return self

    @property
    def conversation(self) -> tuple[PromptMessage, ...]:
        """The messages, those of `prompt` and `system` too."""
        if self.prompt is None:
            return self.messages
        own = PromptMessage(role="user", content=self.prompt)
        return (PromptMessage(role="system", content=self.system), own) if self.system else (own,)


class Prompts:
    """The env of plain prompts, see the module's docstring. Stateless."""

    name: ClassVar[str] = "prompts"
    version: ClassVar[str] = "1"
    unscored: ClassVar[Literal[True]] = True
    tools: ClassVar[Sequence[str]] = tuple(
        "terminal process read_file write_file patch search_files calculator".split()
    )
    Item: type[PromptItem] = PromptItem

    def prompt(self, item: PromptItem) -> list[Message]:
        """The row's messages, unchanged."""
        return [Message(role=each.role, content=each.content) for each in item.conversation]

    def task(self, item: PromptItem) -> str:
        """The prompt; a longer conversation as text with the roles."""
        [*before, last] = item.conversation
        if not before:
            return last.content
        if len(before) == 1 and before[0].role == "system":
            return f"{before[0].content}\n\n{last.content}"
        shown = "\n\n".join(f"{each.role}: {each.content}" for each in item.conversation)
        return TASK_OF_A_CONVERSATION + shown

    def spec(self, item: PromptItem, profile: str) -> SlotSpec:
        """Any slot."""
        return SlotSpec(profile=profile)

    async def setup(self, item: PromptItem, context: SlotContext) -> None:
        """Leave the workspace empty."""

    async def verify(
        self, item: PromptItem, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        """No score: there is nothing to measure."""
        return Verdict(score=None, report={"reason": "no_verifier"})

    async def oracle(self, item: PromptItem, context: SlotContext) -> list[ToolCall]:
        """No calls."""
        return []

    def oracle_answer(self, item: PromptItem) -> str:
        """The row's `response`."""
        return item.response or "(the row has no response)"

    def tamper(self, item: PromptItem) -> Mapping[str, Sequence[ToolCall | str]]:
        """Without a score there is nothing to cheat."""
        return {}


ENV: Environment[Any] = Prompts()
