"""The trainer's side of the Atropos protocol: requests to answers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import gzip
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from pydantic import ValidationError

from hermes_queue.sinks.atropos.wire import GZIP_LEVEL
from hermes_queue.sinks.atropos_server.batches import Batch, InDoubt, TrainerBatches, Unfit
from hermes_queue.sinks.atropos_server.body import NO_EXAMPLE
from hermes_queue.sinks.atropos_server.http import Answer, BadRequest, Handlers, Request
from hermes_queue.sinks.atropos_server.options import Registration

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
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

logger = logging.getLogger(__name__)


class Routes:
    """Answers requests; `batches` is used in `thread` alone."""

    def __init__(
        self, batches: TrainerBatches, thread: Executor, *, token: str | None, host: str
    ) -> None:
        self._batches = batches
        self._thread = thread
        self._token = token
        self._host = host
        self._asking: asyncio.Future[Batch | None] | None = None
        self._settling = asyncio.Lock()
        self._packed: tuple[Batch, bytes] | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has an exception as soon as the service cannot go on."""
        self._known: dict[tuple[str, str], Callable[[Request], Awaitable[Answer]]] = {
            ("GET", "/"): self._root,
            ("POST", "/register"): self._register,
            ("GET", "/batch"): self._batch,
            ("GET", "/status"): self._status,
            ("GET", "/info"): self._info,
            ("GET", "/wandb_info"): self._wandb_info,
            ("GET", "/latest_example"): self._latest,
            ("GET", "/reset_data"): self._reset,
        }

    def handlers(self) -> Handlers:
        """For `HttpServer`."""
        return Handlers(self.answer, self._delivered, self._lost, self._refusal)

    async def answer(self, request: Request) -> Answer:
        """The answer to a request."""
        if refused := self._refused(request):
            return refused
        found = self._known.get((request.method, request.path))
        if found is not None:
            return await found(request)
        if request.path in _ENVIRONMENTS:
            return _said(410, _GONE)
        if any(path == request.path for _, path in self._known):
            return _said(405, "Method Not Allowed")
        return _said(404, "Not Found")

    def _refused(self, request: Request) -> Answer | None:
        """Pages in a browser and strangers may ask nothing: a GET hands out a batch."""
        headers = request.headers
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            return _said(403, "not for web pages")
        name = headers.get("host", "").rpartition("]")
        asked = name[0].removeprefix("[") or name[2].partition(":")[0]
        if self._token is None and asked.lower() not in {*_LOOPBACK, self._host, ""}:
            return _said(403, f"this server is not {asked!r}")  # a name that a stranger resolved
        if self._token is not None and not _has(self._token, headers.get("authorization", "")):
            said = _said(401, "send the token: http://trainer:TOKEN@host:port, or as bearer token")
            return Answer(
                401, said.body, headers={"WWW-Authenticate": 'Basic realm="hermes-queue"'}
            )
        return None

    def _refusal(self, error: BadRequest) -> Answer:
        if error.path in _ENVIRONMENTS:
            return _said(410, _GONE)
        return _said(error.status, str(error))

    async def _root(self, _: Request) -> Answer:
        return _json({"message": "AtroposLib API"})

    async def _register(self, request: Request) -> Answer:
        try:
            registration = Registration.model_validate_json(request.body)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            return _json({"detail": problems}, 422)
        try:
            await self.blocking(self._batches.register, registration)
        except Unfit as error:
            logger.warning("refused a trainer: %s", error, extra={"action": "atropos_unfit"})
            return _said(409, str(error))
        return _json({"uuid": secrets.randbits(62) + 1})

    async def _batch(self, request: Request) -> Answer:
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
        return await self._packed_for(request, batch) if batch else _json({"batch": None})

    async def _packed_for(self, request: Request, batch: Batch) -> Answer:
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Answer(200, batch.body, step=batch.step)
        if len(batch.body) < _PACKED_FROM_BYTES:
            return Answer(200, batch.body, step=batch.step)
        if self._packed is None or self._packed[0] is not batch:
            self._packed = batch, await asyncio.to_thread(gzip.compress, batch.body, GZIP_LEVEL)
        return Answer(200, self._packed[1], headers={"Content-Encoding": "gzip"}, step=batch.step)

    async def _status(self, _: Request) -> Answer:
        batches = self._batches
        return _json({"current_step": batches.step, "queue_size": batches.waiting})

    async def _info(self, _: Request) -> Answer:
        known = self._batches.progress.registration
        found = (known.batch_size, known.max_token_len) if known else (-1, -1)
        return _json(dict(zip(("batch_size", "max_token_len"), found, strict=True)))

    async def _wandb_info(self, _: Request) -> Answer:
        known = self._batches.progress.registration
        found = (known.wandb_group, known.wandb_project) if known else (None, None)
        return _json(dict(zip(("group", "project"), found, strict=True)))

    async def _latest(self, _: Request) -> Answer:
        last = self._batches.last
        return Answer(200, last.latest if last else NO_EXAMPLE)

    async def _reset(self, _: Request) -> Answer:
        await self.blocking(self._batches.forget)
        return Answer(200, b"Reset successful", "text/plain; charset=utf-8")

    async def _delivered(self, step: int, torn: Callable[[], bool]) -> None:
        # Whoever tears a connection down and asks again is served after that is known.
        async with self._settling:
            await self.blocking(self._batches.delivered, step, beside=True)
            if torn():
                await self._lost(step)

    async def _lost(self, step: int) -> None:
        await self.blocking(self._batches.lost, step, beside=True)

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


def _has(token: str, authorization: str) -> bool:
    """Whether a header carries the token, as a bearer token or as a password."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    elif kind.lower() != "bearer":
        return False
    return secrets.compare_digest(value.encode(), token.encode())


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value, separators=(",", ":")).encode())


def _said(status: int, detail: str) -> Answer:
    return _json({"detail": detail}, status)


def _failed(message: str, status: int, **more: Any) -> Answer:
    """An error of `/batch` in the form that trainers look for."""
    return _json({"status": "error", "message": message, **more}, status)
