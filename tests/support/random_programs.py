"""Programs that call the model as no real one does, in all three dialects, and what must hold.

A model answers whose sampled tokens are all different, so that each can be found again wherever it
turns up. Programs resend, edit, drop, reorder and repeat messages, branch off, ask again, leave,
change their tools, and put system prompts in odd places.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_queue.agent.budget import AttemptBudget
from hermes_queue.agent.capture.calls import Answer, ModelCall, Refused
from hermes_queue.agent.capture.dialects import chat, messages, responses
from hermes_queue.agent.capture.dialects.base import Asked, Dialect, Head
from hermes_queue.agent.capture.dialects.conversation import arguments_object
from hermes_queue.agent.capture.session import AttemptSession
from hermes_queue.agent.capture.tree import Placement, ReplyTree
from hermes_queue.agent.chat import Reply
from hermes_queue.agent.loop import AgentResult
from hermes_queue.agent.tokens.anchor import Anchor
from hermes_queue.errors import ContextLengthExceeded
from hermes_queue.models import FunctionCall, Limits, Message, ToolCall, Turn, Usage

TASK = "Find the bug in parse() and mend it."
FIRST_SAMPLED = 1 << 22
"""Ids from here on were sampled; those below are characters."""
END = FIRST_SAMPLED - 1
TOOLS = ({"name": "bash", "parameters": {"type": "object"}}, {"name": "grep", "parameters": {}})
TEXTS = ("", "ok", " ok", "Let me look.", "é\n", "1", "{}")
ARGUMENTS = ('{"command": "ls"}', '{"command":"ls","n":1.0}', "{}", "{oops", "[1]", "null")


def rendered(conversation: Sequence[Message]) -> tuple[int, ...]:
    """A template that shows all of a message."""
    return tuple(
        ord(char)
        for message in conversation
        for char in message.model_dump_json(exclude_defaults=True) + "\n"
    )


Sampled = tuple[tuple[int, ...], tuple[int, ...]]


class UniqueTokens:
    """A model by token ids. No two tokens that it samples are equal."""

    def __init__(self, chance: random.Random, *, failures: float = 0.0) -> None:
        self.chance = chance
        self.failures = failures
        self.next_id = FIRST_SAMPLED
        self.calls = 0
        self.astray: list[str] = []
        self.shown: dict[Sampled, tuple[Message, ...]] = {}
        """By the ids of prompt and completion: the conversation that the prompt shows."""
        self._ended: dict[Sampled, bool] = {}
        self._replies: dict[Sampled, Message] = {}

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
        *,
        anchor: Anchor | None = None,
    ) -> Reply:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        if self.chance.random() < self.failures:
            raise ContextLengthExceeded("too long")
        prompt, shown = rendered(messages), tuple(messages)
        if anchor is not None:
            prompt, shown = self._continued(anchor, shown)
        self.calls += 1
        most = sampling.get("max_tokens") or 4
        count = min(most, self.chance.choice((1, 2, 3, 4, 4)))
        ids = tuple(range(self.next_id, self.next_id + count))
        self.next_id += count
        turn = Turn(
            prompt_ids=prompt,
            completion_ids=ids,
            logprobs=(-0.5,) * count,
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=count),
            finish_reason="length" if count == most else "stop",
        )
        message = self._message()
        ended = count < most and self.chance.random() < 0.8
        self.shown[prompt, ids] = shown
        self._ended[prompt, ids], self._replies[prompt, ids] = ended, message
        anchored = Anchor.of(turn, [*messages, message], ended_by_token=ended)
        return Reply(message, turn, anchor=anchored)

    def _continued(
        self, anchor: Anchor, messages: tuple[Message, ...]
    ) -> tuple[tuple[int, ...], tuple[Message, ...]]:
        """The prompt after an anchor, and what it shows: of a reply, the tokens as sampled."""
        sampled = tuple(anchor.prompt_ids), tuple(anchor.completion_ids)
        known = len(anchor.messages)
        new = messages[known:]
        if messages[:known] != anchor.messages:
            self.astray.append("an anchor's messages are not those that are sent")
        if any(each.role == "assistant" for each in new):
            self.astray.append("an anchor is followed by a reply")
        if anchor.ended_by_token != self._ended[sampled]:
            self.astray.append("an anchor's reply ended in another way")
        end = () if anchor.ended_by_token else (END,)
        shown = (*self.shown[sampled], self._replies[sampled], *new)
        return (*sampled[0], *sampled[1], *end, *rendered(new)), shown

    def _message(self) -> Message:
        chance = self.chance
        if self._replies and chance.random() < 0.2:  # it says the same again
            return chance.choice([*self._replies.values()])
        calls = tuple(
            ToolCall(
                id=chance.choice((f"call_{self.calls}_{n}", f"call_{n}")),
                function=FunctionCall(
                    name=chance.choice(("bash", "grep")), arguments=chance.choice(ARGUMENTS)
                ),
            )
            for n in range(chance.choice((0, 1, 1, 2)))
        )
        reasoning = chance.choice((None, None, "hm"))
        text = chance.choice(TEXTS)
        return Message(role="assistant", content=text, tool_calls=calls, reasoning=reasoning)


# --- bodies ---------------------------------------------------------------------------------


def other_json(chance: random.Random, text: str) -> str:
    """The same value, written in another way."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return json.dumps(value, separators=chance.choice(((",", ":"), (", ", ": "))))


def chat_body(chance: random.Random, said: Sequence[Message]) -> dict[str, Any]:
    """A conversation as Chat Completions takes it."""
    found = []
    for message in said:
        item: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.content and message.role != "assistant" and chance.random() < 0.3:
            item["content"] = [{"type": "text", "text": message.content}]
        if message.role == "assistant":
            if not message.content and chance.random() < 0.5:
                item["content"] = chance.choice((None, ""))
            if message.reasoning and chance.random() < 0.5:
                item["reasoning_content"] = message.reasoning
            if message.tool_calls:
                item["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {
                            "name": call.function.name,
                            "arguments": other_json(chance, call.function.arguments),
                        },
                    }
                    for call in message.tool_calls
                ]
        if message.role == "tool":
            item["tool_call_id"] = message.tool_call_id
        found.append(item)
    return {"messages": found}


def messages_body(chance: random.Random, said: Sequence[Message]) -> dict[str, Any]:
    """A conversation as Messages takes it."""
    found: list[dict[str, Any]] = []
    for message in said:
        if message.role == "tool":
            block = {"type": "tool_result", "tool_use_id": message.tool_call_id}
            block["content"] = message.content or ""
            found.append({"role": "user", "content": [block]})
        elif message.role == "assistant":
            blocks: list[dict[str, Any]] = []
            if message.reasoning and chance.random() < 0.5:
                blocks.append({"type": "thinking", "thinking": message.reasoning})
            if message.content or not message.tool_calls:
                blocks.append({"type": "text", "text": message.content or ""})
            for call in message.tool_calls:
                given = arguments_object(call.function.arguments)
                name = call.function.name
                blocks.append({"type": "tool_use", "id": call.id, "name": name, "input": given})
            found.append({"role": "assistant", "content": blocks})
        else:
            found.append({"role": message.role, "content": message.content})
    return {"messages": found, "thinking": {"type": "enabled"}}


def responses_body(chance: random.Random, said: Sequence[Message]) -> dict[str, Any]:
    """A conversation as Responses takes it."""
    found: list[dict[str, Any]] = []
    for message in said:
        if message.role == "tool":
            item = {"type": "function_call_output", "call_id": message.tool_call_id}
            found.append({**item, "output": message.content})
            continue
        if message.role != "assistant":
            found.append({"role": message.role, "content": message.content})
            continue
        if message.reasoning and chance.random() < 0.5:
            content = [{"type": "reasoning_text", "text": message.reasoning}]
            found.append({"type": "reasoning", "content": content})
        if message.content or not message.tool_calls:
            part = {"type": "output_text", "text": message.content or ""}
            found.append({"type": "message", "role": "assistant", "content": [part]})
        for call in message.tool_calls:
            item = {"type": "function_call", "call_id": call.id, "name": call.function.name}
            found.append({**item, "arguments": other_json(chance, call.function.arguments)})
    return {"input": found, "store": False}


BODIES = {
    "chat": (chat.DIALECT, chat_body),
    "messages": (messages.DIALECT, messages_body),
    "responses": (responses.DIALECT, responses_body),
}


def offered(dialect: Dialect, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools as the dialect takes them."""
    if dialect.name == "chat":
        return [{"type": "function", "function": dict(tool)} for tool in tools]
    if dialect.name == "messages":
        return [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in tools]
    return [{"type": "function", **tool} for tool in tools]


def taken(dialect: Dialect, asked: Asked, answer: Answer) -> Message:
    """The reply as a client holds it, from the JSON of the answer."""
    body = json.loads(json.dumps(dialect.whole(asked, answer, "m")))
    b"".join(dialect.stream(asked, answer, "m"))
    if dialect.name == "chat":
        given = {"messages": [body["choices"][0]["message"]]}
    elif dialect.name == "messages":
        given = {"messages": [{"role": "assistant", "content": body["content"]}]}
    else:
        given = {"input": body["output"]}
    [message] = dialect.read(given, Head("/"), lambda name: None).call.messages
    return message


def rewritten(chance: random.Random, reply: Message, turn: int) -> Message:
    """A reply as a program keeps it: perhaps with ids of its own, and without blanks around it."""
    if chance.random() < 0.3:
        reply = reply.model_copy(update={"content": (reply.content or "").strip()})
    if chance.random() < 0.5:
        return reply
    calls = tuple(
        call.model_copy(update={"id": f"own_{turn}_{n}"}) for n, call in enumerate(reply.tool_calls)
    )
    return reply.model_copy(update={"tool_calls": calls})


# --- a program ------------------------------------------------------------------------------


class KeepingTree(ReplyTree):
    """Keeps the call that each turn answers, also of clients that left."""

    asked: list[ModelCall]

    def __init__(self, result: AgentResult, task: str, *, history: Any) -> None:
        super().__init__(result, task, history=history)
        self.asked = []

    def add(self, placement: Placement, call: ModelCall, reply: Reply, began_s: float = 0.0) -> int:
        self.asked.append(call)
        return super().add(placement, call, reply, began_s)


class Attempt:
    """One attempt of a random program."""

    def __init__(
        self,
        chance: random.Random,
        *,
        history: Any = "sampled",
        overlap: bool = True,
        rudeness: float = 0.3,
        failures: float = 0.0,
        **limits: Any,
    ) -> None:
        self.chance, self.rudeness, self.overlap = chance, rudeness, overlap
        self.result = AgentResult()
        self.model = UniqueTokens(chance, failures=failures)
        self.limits = Limits(**limits)
        self.tree = KeepingTree(self.result, TASK, history=history)
        self.asked = self.tree.asked
        budget = AttemptBudget(self.limits, {}, time.monotonic() + 600)
        self.session = AttemptSession(self.model, self.tree, budget, self.result, model="m")
        self.had: dict[int, int] = {}
        """By turn whose reply was delivered: how many turns there were then."""
        self.refused: list[str] = []
        system = Message(role="system", content="You are an agent.")
        user = Message(role="user", content=f"Please: {TASK}")
        helper = Message(role="user", content="Look at the files.")
        self.conversations = [[system, user], [user], [helper]]
        self.tools = [TOOLS[:1], TOOLS[:1], ()]
        self.dialects = [chance.choice(tuple(BODIES)) for _ in self.conversations]

    async def run(self, steps: int) -> None:
        """Let the program do `steps` things, several at once if calls overlap."""
        for _ in range(steps):
            which = [
                self.chance.randrange(len(self.conversations))
                for _ in range(self.chance.choice((1, 1, 1, 2, 3)) if self.overlap else 1)
            ]
            await asyncio.gather(*map(self.step, dict.fromkeys(which)))
        await self.session.idle()
        self.session.seal()
        await self.session.close()

    async def step(self, which: int) -> None:
        """One call of a conversation, perhaps after something odd."""
        chance = self.chance
        if chance.random() < self.rudeness:
            self.disturb(which)
        dialect, write = BODIES[self.dialects[which]]
        said = self.conversations[which]
        body = write(chance, said) | {"model": "m"}
        if self.tools[which]:
            body["tools"] = offered(dialect, self.tools[which])
        if chance.random() < 0.1:
            name = "max_output_tokens" if dialect.name == "responses" else "max_tokens"
            body[name] = chance.randrange(1, 6)
        while True:
            body["stream"] = chance.random() < 0.5
            asked = dialect.read(json.loads(json.dumps(body)), Head("/v1/x"), lambda name: None)
            answer = await self.answered(asked.call)
            if answer is None:
                return
            if chance.random() < 0.15:
                self.session.undelivered(answer)
                if (after := chance.random()) < 0.4:
                    return
                if after < 0.7:
                    continue
                break  # it has the reply all the same
            self.session.delivered(answer)
            self.had[answer.turn] = len(self.result.turns)
            if chance.random() < 0.1:
                continue  # another sample of the same
            break
        reply = rewritten(chance, taken(dialect, asked, answer), answer.turn)
        said = [*said, reply]
        said += [
            Message(role="tool", content=chance.choice(TEXTS), tool_call_id=call.id)
            for call in reply.tool_calls
        ] or [Message(role="user", content=chance.choice(("Go on.", TASK)))]
        self.conversations[which] = said

    async def answered(self, call: ModelCall) -> Answer | None:
        """The answer, or None: it was refused, or the client left."""
        waiting = asyncio.ensure_future(self.session.answer(call))
        if self.chance.random() < 0.1:
            for _ in range(self.chance.randrange(5)):
                await asyncio.sleep(0)
            if not waiting.done():
                waiting.cancel()
        try:
            return await waiting
        except asyncio.CancelledError:
            return None
        except Refused as refused:
            self.refused.append(refused.kind)
            return None

    def disturb(self, which: int) -> None:
        """Do to a conversation what no decent program does."""
        chance = self.chance
        kind = chance.choice(("message", "message", "message", "branch", "tools", "dialect"))
        if kind == "tools":
            self.tools[which] = chance.choice(((), TOOLS[:1], TOOLS, TOOLS[::-1]))
        elif kind == "dialect":
            self.dialects[which] = chance.choice(tuple(BODIES))
        elif kind == "message":
            self.conversations[which] = changed(chance, self.conversations[which])
        else:
            said = self.conversations[which]
            self.conversations.append(said[: chance.randrange(len(said)) + 1])
            self.tools.append(self.tools[which])
            self.dialects.append(chance.choice(tuple(BODIES)))


def changed(chance: random.Random, conversation: Sequence[Message]) -> list[Message]:
    """The conversation edited, shortened, reordered, repeated, summarised or added to."""
    said, at = list(conversation), chance.randrange(len(conversation))
    match chance.randrange(7):
        case 0:
            said[at] = said[at].model_copy(update={"content": chance.choice(("cut", "ok"))})
        case 1 if len(said) > 1:
            del said[at]
        case 2:
            said[at - 1], said[at] = said[at], said[at - 1]
        case 3:
            said.insert(at, said[at])
        case 4:
            said.insert(at, Message(role="system", content="Mind this."))
        case 5:
            written = Message(role="assistant", content=chance.choice(TEXTS[1:]))
            said += [written, Message(role="user", content="And?")]
        case 6:
            said = [*said[:2], Message(role="user", content="So far: x."), *said[-2:]]
        case _:
            pass
    return said


# --- what must hold -------------------------------------------------------------------------


def meaning(said: Sequence[Message], *, astray: bool = True) -> list[Any]:
    """What a conversation says, found in another way than the tree does.

    `astray`: with the ids of results that answer no call.
    """
    found: list[Any] = []
    places: dict[str, Any] = {}
    for number, message in enumerate(said):
        if message.role == "assistant":
            calls = []
            for n, call in enumerate(message.tool_calls):
                places[call.id] = (number, n)
                try:
                    value = json.dumps(json.loads(call.function.arguments), sort_keys=True)
                except ValueError:
                    value = call.function.arguments
                calls.append((call.function.name, value.replace("1.0", "1")))
            found.append(("assistant", (message.content or "").strip(), tuple(calls)))
        elif message.role == "tool":
            answered = places.get(message.tool_call_id or "", message.tool_call_id)
            found.append(("tool", message.content or "", answered))
            if not astray and not isinstance(answered, tuple):
                found[-1] = ("tool", message.content or "")
        else:
            found.append((message.role, message.content or ""))
    return found


def parents_by_meaning(attempt: Attempt, turn: int) -> set[int]:
    """The turns that a turn may continue: those whose reply is the last that its call repeats.

    Found by comparing the call with all earlier ones, one by one.
    """
    result, call = attempt.result, attempt.asked[turn]
    said, longest, found = meaning(call.messages), 0, set()
    replies = {node.turn: node.message for node in result.nodes}
    for earlier in range(turn):
        before = attempt.asked[earlier]
        if before.tools != call.tools:
            continue
        whole = meaning([*before.messages, replies[earlier]])
        if len(whole) >= longest and said[: len(whole)] == whole:
            found = {earlier} | (found if len(whole) == longest else set())
            longest = len(whole)
    return found
