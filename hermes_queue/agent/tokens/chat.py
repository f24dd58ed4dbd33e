"""Token mode: each prompt is an anchor's tokens plus the environment's new messages.

In message mode the server renders the whole conversation again at each turn, and the assistant's
text may be tokenized to other ids than were sampled: arguments are reformatted, blanks are lost,
unusual samples merge into other tokens. In token mode no sampled text is rendered again.

To find the tokens between a completion and the next prompt, we render two conversations with the
model's own template: one of two messages, and the same one followed by the new messages. The
second must begin with the first; the remaining ids are the continuation (as in verl and SkyRL).
If they do not, the whole conversation is rendered and a new sequence begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hermes_queue.agent.endpoint.chat import OpenAIChat
from hermes_queue.agent.endpoint.reply import Completion
from hermes_queue.agent.endpoint.request import ChatRequest
from hermes_queue.agent.parameters import OpenAIParams
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.tokens.anchor import Anchor
from hermes_queue.agent.tokens.continuation import PartialReply
from hermes_queue.agent.tokens.servers import connect, load_server, own_servers
from hermes_queue.agent.tokens.servers.base import (
    TEMPLATE_FIELDS,
    MalformedReply,
    Rendered,
    RequestGivenUp,
    Sampled,
    Server,
)
from hermes_queue.errors import ContextLengthExceeded, ModelConfigError
from hermes_queue.models import AgentSpec, Message, Usage
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
        self._endings: dict[str, tuple[int, ...]] = {}
        """By the parameters of the template: its ids after a reply."""
        self._max_model_tokens: int | None = None

    @staticmethod
    def servers_of(params: OpenAIParams) -> Mapping[str, Server]:
        """The bundled servers, and the one that the job names."""
        return {**own_servers(), params.server: load_server(params.server)}

    def state(self) -> dict[str, Any]:
        """See `Resumable`."""
        return {**super().state(), "max_model_tokens": self._max_model_tokens}

    def resume(self, state: Mapping[str, Any], turns: int) -> None:
        """See `Resumable`."""
        super().resume(state, turns)
        most = state.get("max_model_tokens")
        self._max_model_tokens = most if isinstance(most, int) else None

    async def _exchange(self, request: ChatRequest) -> Completion:
        so_far = request.so_far
        if not so_far.ids:
            so_far.prompt, so_far.rerendered = await self._prompt(request)
        prompt, refused = so_far.prompt, so_far.rerendered
        sampling = {k: v for k, v in request.body.items() if k not in _NO_SAMPLING}
        bounded, context_bound = self._bounded(sampling, len(prompt))
        sampled = await self._rest(so_far, bounded)
        # Weights may be updated before the next request.
        version = self._version_of(sampled.policy_version, sampled.model)
        if not self._versioned_by_server:
            sampled = replace(sampled, policy_spans=())
        if sampled.aborted:
            so_far.keep(sampled, version, bounded, self._settings.max_continuations)
        sampled, seams = so_far.whole(sampled, version), so_far.seams()
        # The text is without the end-of-turn token.
        ids = sampled.ids[:-1] if sampled.ended_turn else sampled.ids
        text = await self._tokens.text(ids) if ids else ""
        if refused:
            request.events.append({"event": "rerendered", "reason": refused})
        if seams:
            request.events.append({"event": "reply_continued", "at": seams})
        return Completion(
            message=Message(role="assistant", content=text),
            reasoning_field=None,
            finish_reason=sampled.finish_reason,
            usage=sampled.usage,
            prompt_ids=tuple(prompt),
            completion_ids=sampled.ids,
            logprobs=sampled.logprobs,
            policy_version=sampled.policy_version,
            policy_spans=sampled.policy_spans,
            model=sampled.model,
            context_bound=context_bound,
            ended_by_token=sampled.ended_turn,
        )

    async def _rest(self, so_far: PartialReply, sampling: Mapping[str, Any]) -> Sampled:
        """What the server samples after the prompt and the tokens so far.

        Nothing, if an aborted reply is as long as it may be.
        """
        kept = so_far.ids
        limit = sampling.get("max_tokens")
        if kept and isinstance(limit, int):
            sampling = {**sampling, "max_tokens": limit - len(kept)}
            if limit <= len(kept):
                return Sampled((), (), "length", ended_turn=False, usage=Usage())
        try:
            sampled = await self._tokens.sample((*so_far.prompt, *kept), sampling)
            self._require_counts(sampled)
        except RequestGivenUp:  # before it had more tokens
            raise
        except MalformedReply:  # it may have gone on from something else
            so_far.forget()
            raise
        return sampled

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

    async def _prompt(self, request: ChatRequest) -> tuple[tuple[int, ...], str]:
        """The ids to continue, and why they do not extend the anchor's ("" if they do)."""
        anchor, refused = request.anchor, ""
        if anchor is not None:
            if request.messages[: len(anchor.messages)] == anchor.messages:
                follow = await self._bridge(anchor, request)
                if follow is not None:
                    return (*anchor.prompt_ids, *anchor.completion_ids, *follow), ""
                refused = "the template has no continuation"
            else:
                refused = "the history was rewritten"
        rendered = await self._render(request, request.body["messages"], reply=True)
        return rendered.ids, refused

    async def _bridge(self, anchor: Anchor, request: ChatRequest) -> tuple[int, ...] | None:
        """The template's ids between the anchor and the next reply; None if unclear."""
        wire = request.body["messages"]
        # In prompted mode, several messages are sent as one.
        known = len(self._dialect.outgoing(anchor.messages, request.tools))
        last, new = wire[known - 1], wire[known:]
        if any(m["role"] == "assistant" for m in new):
            return None
        ending = await self._turn_ending(request)
        before = [{"role": "user", "content": "."}, last]
        base = (await self._render(request, before, reply=False)).ids
        full = (await self._render(request, [*before, *new], reply=True)).ids
        if full[: len(base)] != base or not ending or base[-len(ending) :] != ending:
            return None
        written = 0
        if anchor.ended_by_token and (last_id := anchor.completion_ids[-1]) in ending:
            written = ending.index(last_id) + 1
        return (*ending[written:], *full[len(base) :])

    async def _turn_ending(self, request: ChatRequest) -> tuple[int, ...]:
        """The template's ids after a reply, from its end-of-turn token on; () if unclear.

        Found by rendering two conversations that differ only in the reply: their common suffix
        is the ending. Samples do not show it, because a reply may end in one of several tokens,
        or be cut off.
        """
        template = json.dumps(_template(request), sort_keys=True, default=repr)
        if template not in self._endings:
            one, other = [
                (
                    await self._render(
                        request,
                        [{"role": "user", "content": "."}, {"role": "assistant", "content": text}],
                        tools=(),
                        reply=False,
                    )
                ).ids
                for text in ("1", "2")
            ]
            shared = 0
            while shared < min(len(one), len(other)) and one[-1 - shared] == other[-1 - shared]:
                shared += 1
            self._endings[template] = one[-shared:] if 0 < shared < len(one) else ()
        return self._endings[template]

    async def _render(
        self,
        request: ChatRequest,
        messages: Sequence[Mapping[str, Any]],
        *,
        reply: bool,
        tools: Sequence[Any] | None = None,
    ) -> Rendered:
        """The ids of `messages` with the request's template, and its tools unless others are given.

        What the server says about its context's length is kept.
        """
        shown = request.body.get("tools", ()) if tools is None else tools
        found = await self._tokens.render(messages, shown, reply=reply, template=_template(request))
        self._max_model_tokens = found.max_model_tokens or self._max_model_tokens
        return found

    def _bounded(self, sampling: dict[str, Any], used: int) -> tuple[dict[str, Any], bool]:
        """`sampling` with a length that fits the model's context, and whether that has set it.

        Such endpoints default to a few tokens, so a length is set if the context's is known.
        """
        name = "max_completion_tokens" if "max_completion_tokens" in sampling else "max_tokens"
        limit = sampling.pop(name, None)
        context_bound = False
        if self._max_model_tokens is not None:
            left = self._max_model_tokens - used
            if left < 1:
                raise ContextLengthExceeded(
                    f"a prompt of {used} tokens fills the model's context length "
                    f"{self._max_model_tokens}"
                )
            context_bound = limit is None or left < limit
            limit = left if context_bound else limit
        return sampling if limit is None else {**sampling, "max_tokens": limit}, context_bound


def _template(request: ChatRequest) -> dict[str, Any]:
    """The job's parameters for the template."""
    return {k: request.body[k] for k in TEMPLATE_FIELDS if k in request.body}
