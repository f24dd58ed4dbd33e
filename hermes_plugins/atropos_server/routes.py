"""The trainer's side of the Atropos protocol: requests to answers."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from pydantic import ValidationError

from hermes_plugins.atropos_server.batches import InDoubt, ServedBatch, TrainerBatches, Unfit
from hermes_plugins.atropos_server.http import (
    RequestRefused,
    TrainerAnswer,
    TrainerRequest,
    json_answer,
    said,
)
from hermes_plugins.atropos_server.options import Registration
from hermes_queue.sinks.atropos.wire import GZIP_LEVEL

T = TypeVar("T")

_ANSWER_WITHIN_S = 5.0
"""Trainers give up after ten seconds. What takes longer is there at their next request."""
_PACKED_FROM_BYTES = 1000
_ENVIRONMENTS = frozenset(
    {"/register-env", "/status-env", "/disconnect-env", "/scored_data", "/scored_data_list"}
)
_GONE = (
    "this server hands out groups of hermes-queue's results stream; environments cannot send to "
    "it. Enqueue jobs with a producer, or run an Atropos API server for this environment"
)
_EXAMPLE_FIELDS = (
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "generation_params",
    "inference_logprobs",
    "messages",
    "images",
)
_NO_EXAMPLE = json.dumps({name: [] for name in _EXAMPLE_FIELDS}).encode()
"""The answer of `/latest_example` before the first group."""

logger = logging.getLogger(__name__)


class Routes:
    """Answers requests; `batches` is used in `thread` alone."""

    def __init__(self, batches: TrainerBatches, thread: Executor) -> None:
        self._batches = batches
        self._thread = thread
        self._asking: asyncio.Future[ServedBatch | None] | None = None
        self._settling = asyncio.Lock()
        self._packed: tuple[ServedBatch, bytes] | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has an exception as soon as the service cannot go on."""
        self._known: dict[tuple[str, str], Callable[[TrainerRequest], Awaitable[TrainerAnswer]]] = {
            ("GET", "/"): self._root,
            ("POST", "/register"): self._register,
            ("GET", "/batch"): self._batch,
            ("GET", "/status"): self._status,
            ("GET", "/info"): self._info,
            ("GET", "/wandb_info"): self._wandb_info,
            ("GET", "/latest_example"): self._latest,
            ("GET", "/reset_data"): self._reset,
        }

    async def answer(self, request: TrainerRequest) -> TrainerAnswer:
        """The answer to a request."""
        found = self._known.get((request.method, request.path))
        if found is not None:
            return await found(request)
        if request.path in _ENVIRONMENTS:
            return said(410, _GONE)
        if any(path == request.path for _, path in self._known):
            return said(405, "Method Not Allowed")
        return said(404, "Not Found")

    async def _root(self, _: TrainerRequest) -> TrainerAnswer:
        return json_answer({"message": "AtroposLib API"})

    async def _register(self, request: TrainerRequest) -> TrainerAnswer:
        try:
            registration = Registration.model_validate_json(request.body)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            return json_answer({"detail": problems}, 422)
        try:
            await self.blocking(self._batches.register, registration)
        except Unfit as error:
            logger.warning("refused a trainer: %s", error, extra={"action": "atropos_unfit"})
            return said(409, str(error))
        return json_answer({"uuid": secrets.randbits(62) + 1})

    async def _batch(self, request: TrainerRequest) -> TrainerAnswer:
        if self._batches.progress.registration is None:
            return _failed("Trainer not registered. Call /register first.", 200, batch=[])
        async with self._settling:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.ensure_future(self.blocking(self._batches.ask))
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                batch = await asyncio.shield(self._asking)
        except TimeoutError:
            batch = None
        except InDoubt as error:
            return _failed(str(error), 409)
        return await self._packed_for(request, batch) if batch else json_answer({"batch": None})

    async def _packed_for(self, request: TrainerRequest, batch: ServedBatch) -> TrainerAnswer:
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return TrainerAnswer(200, batch.body, batch=batch)
        if len(batch.body) < _PACKED_FROM_BYTES:
            return TrainerAnswer(200, batch.body, batch=batch)
        if self._packed is None or self._packed[0] is not batch:
            self._packed = batch, await asyncio.to_thread(gzip.compress, batch.body, GZIP_LEVEL)
        return TrainerAnswer(
            200, self._packed[1], headers={"Content-Encoding": "gzip"}, batch=batch
        )

    async def _status(self, _: TrainerRequest) -> TrainerAnswer:
        batches = self._batches
        return json_answer({"current_step": batches.step, "queue_size": batches.waiting})

    async def _info(self, _: TrainerRequest) -> TrainerAnswer:
        known = self._batches.progress.registration
        found = (known.batch_size, known.max_token_len) if known else (-1, -1)
        return json_answer(dict(zip(("batch_size", "max_token_len"), found, strict=True)))

    async def _wandb_info(self, _: TrainerRequest) -> TrainerAnswer:
        known = self._batches.progress.registration
        found = (known.wandb_group, known.wandb_project) if known else (None, None)
        return json_answer(dict(zip(("group", "project"), found, strict=True)))

    async def _latest(self, _: TrainerRequest) -> TrainerAnswer:
        last = self._batches.last
        return TrainerAnswer(200, last.latest if last else _NO_EXAMPLE)

    async def _reset(self, _: TrainerRequest) -> TrainerAnswer:
        await self.blocking(self._batches.forget)
        return TrainerAnswer(200, b"Reset successful", "text/plain; charset=utf-8")

    async def delivered(self, batch: ServedBatch, torn: Callable[[], bool]) -> None:
        """See `Handlers`."""
        # Whoever tears a connection down and asks again is served after that is known.
        async with self._settling:
            await self.blocking(self._batches.delivered, batch, beside=True)
            if torn():
                await self.blocking(self._batches.lost, batch, beside=True)

    async def lost(self, batch: ServedBatch) -> None:
        """See `Handlers`."""
        async with self._settling:
            await self.blocking(self._batches.lost, batch, beside=True)

    async def blocking(self, call: Callable[..., T], *arguments: Any, beside: bool = False) -> T:
        """Call it in the thread of `batches`, or in one beside it.

        Any exception but a refusal ends the service.
        """
        thread = None if beside else self._thread
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, call, *arguments)
        except (Unfit, InDoubt):
            raise
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            raise


def refusal(error: RequestRefused) -> TrainerAnswer:
    """The answer to a bad request."""
    return said(410, _GONE) if error.path in _ENVIRONMENTS else said(error.status, str(error))


async def while_starting(request: TrainerRequest) -> TrainerAnswer:
    """The answer before the server is ready: a living trainer asks again for its batch."""
    if (request.method, request.path) == ("GET", "/batch"):
        return json_answer({"batch": None})
    return said(503, "the server is starting")


def _failed(message: str, status: int, **more: Any) -> TrainerAnswer:
    """An error of `/batch` in the form that trainers look for."""
    return json_answer({"status": "error", "message": message, **more}, status)
