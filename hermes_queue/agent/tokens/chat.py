"""Token mode: each prompt is the previous tokens plus the environment's new messages.

In message mode the server renders the whole conversation again at each turn, and the assistant's
text may be tokenized to other ids than were sampled: arguments are reformatted, blanks are lost,
unusual samples merge into other tokens. In token mode no sampled text is rendered again.

To find the tokens between a completion and the next prompt, we render two conversations with the
model's own template: one of two messages, and the same one followed by the new messages. The
second must begin with the first; the remaining ids are the continuation (as in verl and SkyRL).
If they do not, the whole conversation is rendered and a new sequence begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hermes_queue.agent.chat import Reply
from hermes_queue.agent.endpoint.chat import OpenAIChat
from hermes_queue.agent.endpoint.reply import Completion, to_wire
from hermes_queue.agent.parameters import OpenAIParams
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.tokens.servers import connect, load_server, own_servers
from hermes_queue.agent.tokens.servers.base import TEMPLATE_FIELDS, Rendered, Sampled, Server
from hermes_queue.errors import ContextLengthExceeded, ModelConfigError
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings

_NO_SAMPLING = frozenset(
    {"model", "messages", "tools", "logprobs", "return_token_ids", *TEMPLATE_FIELDS}
)


class TokenChat(OpenAIChat):
    """Client of a model behind a server of `hermes_queue.agent.tokens.servers`, by token ids."""

    default_parser = "hermes"
    """A server cannot parse tool calls from ids."""

    def __init__(
        self, spec: AgentSpec, params: OpenAIParams, script: AgentScript, settings: ModelSettings
    ) -> None:
        super().__init__(spec, params, script, settings)
        self._wants_ids = True
        self._tokens = connect(params.server, self._endpoint.post_to_root, self._model)
        self._held: tuple[int, ...] = ()
        """Ids of the conversation so far, including the last completion."""
        self._rendered: list[dict[str, Any]] = []
        """The messages whose ids are in `_held`."""
        self._ended_by_token = False
        """Whether the last completion ended with an end-of-turn token."""
        self._ending: tuple[int, ...] | None = None
        self._max_model_tokens: int | None = None
        self._context_bound = False
        self._template: dict[str, Any] = {}
        """The job's parameters for the template."""

    @staticmethod
    def servers_of(params: OpenAIParams) -> Mapping[str, Server]:
        """The bundled servers, and the one that the job names."""
        return {**own_servers(), params.server: load_server(params.server)}

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
    ) -> Reply:
        """See `ChatClient.complete`."""
        reply = await super().complete(messages, tools, sampling, deadline)
        sent = self._dialect.outgoing([*messages, reply.message], tools)
        self._rendered = to_wire(sent, self._reasoning_field, tools)[0]
        return replace(reply, context_bound=self._context_bound)

    async def _exchange(self, body: Mapping[str, Any], events: list[dict[str, Any]]) -> Completion:
        messages, tools = list(body["messages"]), list(body.get("tools", ()))
        self._template = {k: body[k] for k in TEMPLATE_FIELDS if k in body}
        prompt, refused = await self._prompt(messages, tools)
        sampling = {k: v for k, v in body.items() if k not in _NO_SAMPLING}
        sampled = await self._tokens.sample(prompt, self._bounded(sampling, len(prompt)))
        self._require_counts(sampled)
        # Weights may be updated before the next request.
        version = sampled.policy_version or self._endpoint.policy_version
        # The text is without the end-of-turn token.
        ids = sampled.ids[:-1] if sampled.ended_turn else sampled.ids
        text = await self._tokens.text(ids) if ids else ""
        if refused:
            events.append({"event": "rerendered", "reason": refused})
        self._held, self._ended_by_token = (*prompt, *sampled.ids), sampled.ended_turn
        return Completion(
            message=Message(role="assistant", content=text),
            reasoning_field=None,
            finish_reason=sampled.finish_reason,
            usage=sampled.usage,
            prompt_ids=tuple(prompt),
            completion_ids=sampled.ids,
            logprobs=sampled.logprobs,
            policy_version=version,
            policy_spans=sampled.policy_spans,
            model=sampled.model,
        )

    def _require_counts(self, sampled: Sampled) -> None:
        """Refuse what a server's module makes of an answer if budgets could not be kept with it."""
        name = f"token server {self._params.server!r}: sample()"
        if not isinstance(sampled, Sampled):
            raise ModelConfigError(f"{name} returns a {type(sampled).__name__}, not a `Sampled`")
        if sampled.ids and sampled.usage.completion_tokens < 1:
            raise ModelConfigError(
                f"{name} returns {len(sampled.ids)} ids, but a usage without completion tokens, so "
                "that no budget could be kept: give `read_usage` the object of the answer that "
                "holds `prompt_tokens` and `completion_tokens`"
            )

    async def _prompt(
        self, messages: list[dict[str, Any]], tools: Sequence[Any]
    ) -> tuple[tuple[int, ...], str]:
        """The ids to continue, and why they do not extend the last ones ("" if they do)."""
        refused = ""
        if self._rendered:
            known = len(self._rendered)
            if messages[:known] == self._rendered:
                follow = await self._bridge(messages[known - 1], messages[known:], tools)
                if follow is not None:
                    return (*self._held, *follow), ""
                refused = "the template has no continuation"
            else:
                refused = "the history was rewritten"
        rendered = await self._render(messages, tools, reply=True)
        self._max_model_tokens = rendered.max_model_tokens
        return rendered.ids, refused

    async def _bridge(
        self, last: dict[str, Any], new: list[dict[str, Any]], tools: Sequence[Any]
    ) -> tuple[int, ...] | None:
        """The template's ids between the last completion and the next one; None if unclear."""
        if any(m["role"] == "assistant" for m in new):
            return None
        if self._ending is None:
            self._ending = await self._turn_ending()
        before = [{"role": "user", "content": "."}, last]
        base = (await self._render(before, tools, reply=False)).ids
        full = (await self._render([*before, *new], tools, reply=True)).ids
        ending = self._ending
        if full[: len(base)] != base or not ending or base[-len(ending) :] != ending:
            return None
        last_id = self._held[-1]
        written = ending.index(last_id) + 1 if self._ended_by_token and last_id in ending else 0
        return (*ending[written:], *full[len(base) :])

    async def _turn_ending(self) -> tuple[int, ...]:
        """The template's ids after a reply, from its end-of-turn token on; () if unclear.

        Found by rendering two conversations that differ only in the reply: their common suffix
        is the ending. Samples do not show it, because a reply may end in one of several tokens,
        or be cut off.
        """
        one, other = [
            (
                await self._render(
                    [{"role": "user", "content": "."}, {"role": "assistant", "content": text}],
                    (),
                    reply=False,
                )
            ).ids
            for text in ("1", "2")
        ]
        shared = 0
        while shared < min(len(one), len(other)) and one[-1 - shared] == other[-1 - shared]:
            shared += 1
        return one[-shared:] if 0 < shared < len(one) else ()

    async def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, reply: bool
    ) -> Rendered:
        return await self._tokens.render(messages, tools, reply=reply, template=self._template)

    def _bounded(self, sampling: dict[str, Any], used: int) -> dict[str, Any]:
        """`sampling` with a completion length that fits the model's context.

        Such endpoints default to a few tokens, so a length is set if the context's is known.
        """
        name = "max_completion_tokens" if "max_completion_tokens" in sampling else "max_tokens"
        limit = sampling.pop(name, None)
        if self._max_model_tokens is not None:
            left = self._max_model_tokens - used
            if left < 1:
                raise ContextLengthExceeded(
                    f"a prompt of {used} tokens fills the model's context length "
                    f"{self._max_model_tokens}"
                )
            self._context_bound = limit is None or left < limit
            limit = left if self._context_bound else limit
        return sampling if limit is None else {**sampling, "max_tokens": limit}
