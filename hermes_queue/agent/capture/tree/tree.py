"""Places a program's calls in the tree of its conversations, and takes the replies.

A call continues the deepest reply that it repeats by meaning (`canonical`). In token mode its
prompt is then that reply's own tokens and the new messages: what was sampled is not rendered
again, whatever the program made of it. The time of a call is linear in its text. For the record,
the place is named where a conversation departs from what was said before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hermes_queue.agent.capture.calls import ModelCall
from hermes_queue.agent.capture.tree.canonical import (
    Meant,
    Understood,
    Unplaceable,
    arguments,
    digest,
    meant,
    same_reasoning,
    same_value,
    understood,
)
from hermes_queue.agent.capture.tree.labels import BranchLabels, Story
from hermes_queue.agent.chat import Reply
from hermes_queue.agent.loop import AgentResult
from hermes_queue.agent.tokens.anchor import Anchor
from hermes_queue.agent.tokens.replies import Replies
from hermes_queue.models import Branch, BranchLabel, Message, Node, ToolCall, TurnCall

MAX_NODES = 20_000
MAX_TEXT_CHARS = 64 << 20
"""Text of all messages and tools together, each counted once."""
MAX_TOKEN_IDS = 64 << 20
"""Token ids of all turns together, prompts included."""
_OBJECTS_TO_TEXT = 4
_ALIKE = 8
"""Newest of equal replies to one prompt that are followed further."""
_NAME_CHARS = 256
_HINT_CHARS = 512

History = Literal["sampled", "agent"]
"""What the model sees of replies whose reasoning the program left out. sampled: the replies as they
were sampled. agent: what the program sent."""

_KEY_CHARS = 64
"""Characters of an argument's name that are named."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a call continues the tree, and what is sent to the model."""

    messages: tuple[Message, ...]
    new_messages: tuple[Message, ...]
    """Those that the tree does not hold yet, at the end of `messages`."""
    anchor: Anchor | None
    parent: int | None
    """The turn whose reply is continued; None at the beginning of a conversation."""
    branch: BranchLabel
    """As far as it is known before the reply."""
    rival_turns: int | None
    """Turns of a conversation that is the main one once it has most; None of any other."""
    events: tuple[Mapping[str, Any], ...]
    _at: _TreeEntry
    _rest: tuple[Meant, ...]
    _story: Story
    _setting: bytes
    _sent: bytes
    _continues: bool
    _without_reasoning: tuple[_TreeEntry, ...]


class ReplyTree:
    """All conversations of one attempt. On one event loop; nothing in it waits.

    Several calls may be open between `place` and `add`.
    """

    def __init__(self, result: AgentResult, task: str, *, history: History = "sampled") -> None:
        """An empty tree, whose turns, nodes, branches and events go into `result`.

        `task` is the text that was given to the program as its task.
        """
        self._result = result
        self._replies = Replies(result)
        self._history = history
        self._labels = BranchLabels(task)
        self._roots: dict[bytes, _TreeEntry] = {}
        self._last_root: _TreeEntry | None = None
        self._by_turn: list[_TreeEntry] = []
        self._stories: list[Story] = []
        self._chars = 0
        self._ids = 0
        self._reasoning_event: dict[str, Any] | None = None

    def place(self, call: ModelCall, heard: Understood | None = None) -> Placement:
        """Where `call` belongs. Changes nothing. `heard` is what it means, if that is known.

        Raises:
            Unplaceable: it is nested too deep, or the tree would grow too large.
        """
        heard = heard or understood(call)
        said, root = heard.said, self._root(call, heard)
        at = self._deepest(root, said)
        path, rest = at.path(), said[at.depth :]
        self._require_room(root, rest)
        reply = next((entry for entry in reversed(path) if entry.turn is not None), None)
        new = said[reply.depth :] if reply else ()
        continues = reply is not None and all(each.message.role != "assistant" for each in new)
        sent = _digests_as_sent(said) if self._history == "agent" else ()
        missing = tuple(
            entry
            for entry, each in zip(path, said, strict=False)
            if entry.turn is not None and not same_reasoning(entry.message, each.message)
        )
        rest = _with_our_ids(path, rest)
        ours = (*(entry.message for entry in path), *(each.message for each in rest))
        messages = ours if self._history == "sampled" else call.messages
        setting = _setting(call, heard)
        parent, anchor, unlike = reply.turn if reply else None, None, False
        if reply is not None and parent is not None and continues:
            # The reply is shown as it was sampled, so what answers its calls has their ids.
            shown = (*messages[: reply.depth - 1], *ours[reply.depth - 1 :])
            anchor = self._replies.anchor(parent, shown[: reply.depth])
            unlike = bool(anchor and sent) and not _is_as_sent(reply, said, sent)
            messages = messages if anchor is None or unlike else shown
            story = self._stories[self._branch_of(parent)]
        else:
            story = self._labels.story(call, said, setting)
        return Placement(
            messages=messages,
            new_messages=tuple(each.message for each in rest),
            anchor=None if unlike else anchor,
            parent=parent,
            branch=self._labels.label(story),
            rival_turns=self._labels.rival_turns(story),
            events=tuple(self._departures(call, said, at, root, continues, unlike)),
            _at=at,
            _rest=rest,
            _story=story,
            _setting=setting,
            _sent=sent[-1] if sent else b"",
            _continues=continues,
            _without_reasoning=missing,
        )

    def add(self, placement: Placement, call: ModelCall, reply: Reply, began_s: float = 0.0) -> int:
        """Record the reply to a call, not delivered yet; returns the index of its turn.

        `began_s` is the time of the call in seconds since the program started.
        """
        if placement.parent is not None:
            self._received(placement.parent)
        entry = placement._at
        if entry.above is None:
            entry = self._begun(entry)
        for each in placement._rest:
            # A reply sampled since `place` may say the same, but this call does not continue it.
            known = (e for e in reversed(entry.below.get(each.key, ())) if e.turn is None)
            entry = next(known, None) or self._grown(entry, each.key, each.message)
        turn = self._recorded(placement, call, reply, began_s)
        [key] = [each.key for each in meant([reply.message])]
        entry = self._grown(entry, key, reply.message, turn)
        entry.sent = placement._sent
        self._by_turn.append(entry)
        self._count_missing_reasoning(placement, turn)
        if self._labels.add(placement._story, placement._setting, entry.depth, reply.message):
            branches = self._result.branches
            branches[:] = [
                each.model_copy(update={"label": self._labels.label(story)})
                for each, story in zip(branches, self._stories, strict=True)
            ]
        return turn

    def _recorded(self, placement: Placement, call: ModelCall, reply: Reply, began_s: float) -> int:
        """The turn of a reply, not delivered yet."""
        made = TurnCall(
            dialect=call.dialect,
            path=call.path[:_NAME_CHARS],
            requested_model=call.requested_model and call.requested_model[:_NAME_CHARS],
            streamed=call.streamed,
            hints={name: text[:_HINT_CHARS] for name, text in call.hints.items()},
            began_s=round(began_s, 3),
        )
        self._ids += len(reply.turn.prompt_ids or ()) + len(reply.turn.completion_ids or ())
        branch = self._branch(placement, len(self._result.turns))
        events = (*call.events, *placement.events)
        return self._replies.add(reply, events, parent=placement.parent, branch=branch, call=made)

    def deliver(self, turn: int) -> None:
        """The program has the reply of this turn."""
        found = self._result.turns[turn]
        if found.call is not None and found.call.status != "delivered":
            call = found.call.model_copy(update={"status": "delivered"})
            self._result.turns[turn] = found.model_copy(update={"call": call})

    def main_path(self, *, sampled: bool = False) -> list[Message]:
        """The main conversation up to its last delivered reply, as the model saw it.

        After a compaction, what goes on from there. Empty before the first delivered reply. With
        `sampled`, without the replies that the program wrote itself.
        """
        last = self._last_of_main()
        path = [] if last is None else self._by_turn[last].path()
        return [
            entry.message
            for entry in path
            if not sampled or entry.turn is not None or entry.message.role != "assistant"
        ]

    def main_tools(self) -> tuple[dict[str, Any], ...]:
        """The tools of `main_path`, as the program sent them."""
        last = self._last_of_main()
        if last is None:
            return ()
        first = self._by_turn[last].path()[0]
        return tuple(map(dict, first.above.tools)) if first.above else ()

    def _last_of_main(self) -> int | None:
        turns = self._result.turns
        for index in range(len(turns) - 1, -1, -1):
            label = self._result.branches[self._branch_of(index)].label
            if label in ("main", "compaction") and self._is_delivered(index):
                return index
        return None

    def _is_delivered(self, turn: int) -> bool:
        call = self._result.turns[turn].call
        return call is None or call.status == "delivered"

    def _branch_of(self, turn: int) -> int:
        return self._result.turns[turn].branch or 0

    def _deepest(self, root: _TreeEntry, said: Sequence[Meant]) -> _TreeEntry:
        """The entry of the last message that the tree holds after those before it."""
        alike = [root]
        for each in said:
            found = [entry for above in alike for entry in above.below.get(each.key, ())[-_ALIKE:]]
            if not found:
                break
            if len(found) > 1:
                if each.message.reasoning:
                    exact = [e for e in found if same_reasoning(e.message, each.message)]
                    found = exact or found
                found = sorted(found, key=lambda entry: entry.index)[-_ALIKE:]
            alike = found
        had = [entry for entry in alike if entry.turn is None or self._is_delivered(entry.turn)]
        return (had or alike)[-1]

    def _require_room(self, root: _TreeEntry, rest: Sequence[Meant]) -> None:
        total = self._chars + sum(_chars(each.message) for each in rest)
        if not root.below:
            total += root.tools_chars
        if len(self._result.nodes) + len(rest) >= MAX_NODES or total > MAX_TEXT_CHARS:
            raise Unplaceable(
                f"the program's conversations have more than {MAX_NODES} messages, or more than "
                f"{MAX_TEXT_CHARS >> 20} Mi characters"
            )
        if self._ids > MAX_TOKEN_IDS:
            raise Unplaceable(f"the program's calls have {self._ids} tokens in all")

    def _departures(
        self,
        call: ModelCall,
        said: Sequence[Meant],
        at: _TreeEntry,
        root: _TreeEntry,
        continues: bool,
        unlike: bool,
    ) -> Iterator[dict[str, Any]]:
        """An event if the conversation was held before, but differs from what was said."""
        if unlike:
            yield {"event": "rerendered", "reason": "the program left out reasoning"}
        known = at.path()
        sampled = any(entry.turn is not None for entry in known)
        own = any(each.message.role == "assistant" for each in said[at.depth :])
        if continues or not (sampled or own) or not self._by_turn:
            return
        reason, place = self._difference(call, said, at, root)
        yield {"event": "rerendered", "reason": reason, "at": place}

    def _difference(
        self, call: ModelCall, said: Sequence[Meant], at: _TreeEntry, root: _TreeEntry
    ) -> tuple[str, str]:
        last = self._last_root
        if not root.below and last is not None:
            return "the tools were changed", _first_changed_tool(last.tools, call.tools)
        rest = said[at.depth :]
        if rest and at.newest is not None:
            place = _first_difference(at.newest.message, rest[0].message, at.depth)
            return "the history was rewritten", place
        written = next(
            (i for i in range(len(said) - 1, -1, -1) if said[i].message.role == "assistant"), 0
        )
        return "the program wrote a reply itself", f"messages[{written}]"

    def _root(self, call: ModelCall, heard: Understood) -> _TreeEntry:
        """The beginning of conversations with the call's tools."""
        found = self._roots.get(heard.tools_key)
        if found is None:
            size = heard.tools_chars * _OBJECTS_TO_TEXT  # they stay in memory as objects
            found = _TreeEntry(None, Message(role="system"))
            found.tools, found.tools_key, found.tools_chars = call.tools, heard.tools_key, size
        return found

    def _begun(self, found: _TreeEntry) -> _TreeEntry:
        """The beginning of conversations with the tools of `found`, which is kept from now on."""
        root = self._roots.setdefault(found.tools_key, found)
        if not root.below:
            self._chars += root.tools_chars
        self._last_root = root
        return root

    def _grown(
        self, above: _TreeEntry, key: bytes, message: Message, turn: int | None = None
    ) -> _TreeEntry:
        """A new message after `above`."""
        nodes = self._result.nodes
        made = _TreeEntry(above, message, len(nodes), above.depth + 1, turn)
        parent = above.index if above.index >= 0 else None
        nodes.append(Node(parent=parent, message=message, turn=turn))
        above.below.setdefault(key, []).append(made)
        above.newest = made
        self._chars += _chars(message)
        return made

    def _branch(self, placement: Placement, turn: int) -> int:
        """The branch that a new turn belongs to, perhaps a new one."""
        branches, parent = self._result.branches, placement.parent
        if parent is not None and placement._continues:
            joined = self._branch_of(parent)
            if branches[joined].leaf == parent:
                branches[joined] = branches[joined].model_copy(update={"leaf": turn})
                return joined
        label = self._labels.label(placement._story)
        branches.append(Branch(label=label, root=turn, leaf=turn))
        self._stories.append(placement._story)
        return len(branches) - 1

    def _received(self, turn: int | None) -> None:
        """A call repeats the reply of `turn`, so the program has it, and those before it."""
        while turn is not None and not self._is_delivered(turn):
            self.deliver(turn)
            turn = self._result.turns[turn].parent

    def _count_missing_reasoning(self, placement: Placement, turn: int) -> None:
        new = [entry for entry in placement._without_reasoning if not entry.reasoning_missing]
        if not new:
            return
        for entry in new:
            entry.reasoning_missing = True
        if self._reasoning_event is None:
            kind = "reasoning_kept" if self._history == "sampled" else "reasoning_left_out"
            self._reasoning_event = {"turn": turn, "event": kind, "replies": 0}
            self._result.events.append(self._reasoning_event)
        self._reasoning_event["replies"] += len(new)


def _setting(call: ModelCall, heard: Understood) -> bytes:
    """A key of tools and system text; empty without either."""
    system = b"".join(each.key for each in heard.said if each.message.role == "system")
    return digest([heard.tools_key.hex(), system.hex()]) if call.tools or system else b""


@dataclass(slots=True, eq=False)
class _TreeEntry:
    """A message in the tree, or the beginning of conversations with the same tools."""

    above: _TreeEntry | None
    message: Message
    index: int = -1
    """In `AgentResult.nodes`."""
    depth: int = 0
    turn: int | None = None
    sent: bytes = b""
    """With `history=agent`: digest of the conversation as the program sent it."""
    reasoning_missing: bool = False
    """Whether the program has sent it back without its reasoning."""
    below: dict[bytes, list[_TreeEntry]] = field(default_factory=dict)
    """By the key of the message; the newest one last."""
    newest: _TreeEntry | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    """Of a beginning: what is offered there."""
    tools_key: bytes = b""
    tools_chars: int = 0

    def path(self) -> list[_TreeEntry]:
        """The entries from the first message to this one."""
        entries: list[_TreeEntry] = []
        entry = self
        while entry.above is not None:
            entries.append(entry)
            entry = entry.above
        return entries[::-1]


def _with_our_ids(path: Sequence[_TreeEntry], rest: Sequence[Meant]) -> tuple[Meant, ...]:
    """New messages with the ids that our replies gave to the calls which they answer."""
    replies = [entry.message for entry in path if entry.message.role == "assistant"]
    ours = {
        (number, i): call.id
        for number, message in enumerate(replies)
        for i, call in enumerate(message.tool_calls)
    }
    made: list[Meant] = []
    for each in rest:
        own = ours.get(each.answers) if each.answers else None
        if own is None or own == each.message.tool_call_id:
            made.append(each)
            continue
        message = each.message.model_copy(update={"tool_call_id": own})
        made.append(Meant(message, each.key, each.calls, each.answers))
    return tuple(made)


def _digests_as_sent(said: Sequence[Meant]) -> tuple[bytes, ...]:
    """For each message: a digest of the conversation up to it, with reasoning."""
    digests: list[bytes] = []
    last = b""
    for each in said:
        reasoning = (each.message.reasoning or "").strip()
        last = digest([last.hex(), each.key.hex(), reasoning])
        digests.append(last)
    return tuple(digests)


def _is_as_sent(reply: _TreeEntry, said: Sequence[Meant], sent: Sequence[bytes]) -> bool:
    """Whether the prompt of a reply was what the program sends now, and the reply has come back."""
    before = sent[reply.depth - 2] if reply.depth > 1 else b""
    return before == reply.sent and same_reasoning(reply.message, said[reply.depth - 1].message)


def _chars(message: Message) -> int:
    """Characters of a message."""
    texts = [message.content, message.reasoning, message.tool_call_id]
    for call in message.tool_calls:
        texts += [call.id, call.function.name, call.function.arguments]
    return sum(len(text) for text in texts if text)


def _first_difference(said: Message, sent: Message, at: int) -> str:
    """The place in the messages' JSON where `sent`, number `at`, first differs from `said`."""
    place = f"messages[{at}]"
    if said.role != sent.role:
        return f"{place}.role"
    trimmed = said.role == "assistant"
    texts = [message.content or "" for message in (said, sent)]
    if texts[0] != texts[1] and not (trimmed and texts[0].strip() == texts[1].strip()):
        return f"{place}.content"
    if len(said.tool_calls) != len(sent.tool_calls):
        return f"{place}.tool_calls"
    for number, (one, other) in enumerate(zip(said.tool_calls, sent.tool_calls, strict=True)):
        if part := _in_call(one, other):
            return f"{place}.tool_calls[{number}].function.{part}"
    return f"{place}.tool_call_id" if said.role == "tool" else place


def _first_changed_tool(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> str:
    """The place in the tools' JSON where they first differ."""
    pairs = enumerate(zip(before, now, strict=False))
    same = min(len(before), len(now))
    return f"tools[{next((at for at, (one, other) in pairs if not same_value(one, other)), same)}]"


def _in_call(said: ToolCall, sent: ToolCall) -> str:
    if said.function.name != sent.function.name:
        return "name"
    one, other = arguments(said), arguments(sent)
    if same_value(one, other):
        return ""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        for name in names:
            if name not in one or name not in other or not same_value(one[name], other[name]):
                return f"arguments.{name[:_KEY_CHARS]}"
    return "arguments"
