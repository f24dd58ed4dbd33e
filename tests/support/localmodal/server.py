"""The server: control plane and command router on one plaintext port of 127.0.0.1."""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from grpclib import GRPCError, Status
from modal_proto import api_pb2
from modal_proto import task_command_router_pb2 as router_pb2

from hermes_queue.settings import PathSettings
from localmodal.faults.plan import FaultPlan
from localmodal.faults.service import FaultService
from localmodal.gvisor import check_gvisor
from localmodal.host import Host
from localmodal.listener import Connections, Listener
from localmodal.router import Router
from localmodal.sandbox_calls import SandboxCalls
from localmodal.storage.store import SandboxLimits, Store
from localmodal.wire import Service, Stream, Tokens

logger = logging.getLogger(__name__)

TOKEN_ID, TOKEN_SECRET = "ak-local", "as-local"
"""Public on purpose: they only give access to a port of this machine."""
CALL_TIMEOUT_S = 120.0
T = TypeVar("T")


class LocalModal:
    """`start` it, then point the SDK at its `environment`.

    The thread of its event loop must live as long as the sandboxes, which die with it.
    """

    def __init__(
        self,
        *,
        root: Path | None = None,
        port: int = 0,
        token_id: str = TOKEN_ID,
        token_secret: str = TOKEN_SECRET,
        network: bool = True,
        limits: SandboxLimits | None = None,
        worker_ports: bool = False,
        real_images: bool = False,
        image_cache: Path | None = None,
    ) -> None:
        """Prepare a server; nothing is checked before `start`.

        Files of sandboxes are below `root` (None = the cache) while they live; port 0 = any free
        one. Clients must send both tokens. Without `network` no sandbox has it, whatever it
        requests. With `worker_ports` each sandbox takes its commands on its own port, as on Modal:
        a lost worker refuses connections. On the server's own port, they break. Images with our
        label are built or fetched, with `real_images` all; `image_cache` holds them, None = the
        cache of the backend `local`.
        """
        self.port = port
        self.faults = FaultPlan()
        self._root = root or PathSettings().cache / "localmodal"
        self._credentials = (token_id, token_secret)
        self._network = network
        self._limits = limits or SandboxLimits()
        self._worker_ports = worker_ports
        self._real_images, self._image_cache = real_images, image_cache
        self._tokens = Tokens()
        self._connections = Connections()
        self._host: Host | None = None
        self._store: Store | None = None
        self._listener: Listener | None = None

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point the SDK at the server."""
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": self._credentials[0],
            "MODAL_TOKEN_SECRET": self._credentials[1],
        }

    @property
    def store(self) -> Store:
        """The server's state, while it runs."""
        assert self._store is not None, "the server has not been started"
        return self._store

    @property
    def slots(self) -> int | None:
        """Number of slots that a sandbox can keep apart: 1 without a range of uids, None = any."""
        return None if self.store.host.ids.is_range else 1

    async def start(self) -> None:
        """Check the host, then listen.

        Raises:
            IsolationUnavailable: sandboxes cannot be isolated here; the message has the fix.
            OSError: the port is taken.
        """
        if self._limits.runtime == "gvisor":
            check_gvisor()
        self._listener = Listener([], self.port)
        try:
            self.port = self._listener.port
            self._host = await asyncio.to_thread(Host, self._root.absolute())
            self._store = Store(
                self._host,
                self.faults,
                self._limits,
                self._network,
                self._open_worker,
                real_images=self._real_images,
                image_cache=self._image_cache,
            )
            self._listener.services = self._services(self._store)
            await self._listener.start()
        except BaseException:
            await self.stop()
            raise
        self._report()

    def _services(self, store: Store) -> list[Any]:
        control = SandboxCalls(store, self._tokens, self.url)
        account = api_pb2.DESCRIPTOR.services_by_name["ModalClient"]
        commands = router_pb2.DESCRIPTOR.services_by_name["TaskCommandRouter"]
        router = Service(commands, Router(store), self.faults, self._check_bearer)
        self._router = router
        return [
            Service(account, control, self.faults, self._check_account),
            router,
            FaultService(self, self._check_account),
        ]

    async def _open_worker(self) -> Listener | None:
        if not self._worker_ports:
            return None
        worker = Listener([self._router])
        await worker.start()
        return worker

    def _report(self) -> None:
        ids = self.store.host.ids
        logger.info("listening on %s", self.url, extra={"action": "start"})
        if not ids.is_range:
            logger.warning(
                "no range of uids can be mapped into sandboxes (%s): only root exists in them, "
                "so a sandbox can have only one slot",
                ids.reason,
                extra={"action": "start"},
            )

    async def _check_account(self, name: str, stream: Stream) -> None:
        self._connections.note(stream)
        given = (
            str(stream.metadata.get("x-modal-token-id")),
            str(stream.metadata.get("x-modal-token-secret")),
        )
        pairs = zip(given, self._credentials, strict=True)
        if not all([hmac.compare_digest(a.encode(), b.encode()) for a, b in pairs]):
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID or secret is wrong")
        if name.startswith("Sandbox") and name.endswith("V2"):
            token = str(stream.metadata.get("x-modal-auth-token", ""))
            if self._tokens.subject(token) != "client":
                raise GRPCError(Status.UNAUTHENTICATED, "missing or expired auth token")

    async def _check_bearer(self, name: str, stream: Stream) -> None:
        self._connections.note(stream)
        bearer = str(stream.metadata.get("authorization", "")).removeprefix("Bearer ")
        task_id = self._tokens.subject(bearer)
        box = self.store.tasks.get(task_id) if task_id else None
        if box is None:
            raise GRPCError(Status.UNAUTHENTICATED, "missing or expired router token")
        box.connections.note(stream)
        if box.lost:
            box.connections.abort()
            raise GRPCError(Status.UNAVAILABLE, "the worker is gone")

    async def lose_worker(self, sandbox_id: str) -> None:
        """Kill a sandbox's worker like a machine that dies.

        Everything inside ends at once and connections to it break. The control plane lists it as
        running until it is terminated. Raises GRPCError if there is no such sandbox.
        """
        await self.store.box(sandbox_id).lose_worker()

    async def stop(self) -> None:
        """End every sandbox, stop listening, delete all files. Idempotent."""
        if self._store is not None:
            await self._store.shut_down()
        if self._listener is not None:
            self._listener.close()
            self._connections.abort()
            await self._listener.closed()
        if self._host is not None:
            await asyncio.to_thread(self._host.close)
        self._listener = self._store = self._host = None


class BackgroundServer:
    """A `LocalModal` with its own thread and event loop, for programs with other loops."""

    def __init__(self, **options: Any) -> None:
        """Pass `options` to `LocalModal`."""
        self.server = LocalModal(**options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="localmodal", daemon=True
        )

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the server on its loop; blocks."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def __enter__(self) -> BackgroundServer:
        """See `LocalModal.start`."""
        self._thread.start()
        try:
            self.call(self.server.start())
        except BaseException:
            self._end_thread()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """See `LocalModal.stop`."""
        try:
            self.call(self.server.stop())
        finally:
            self._end_thread()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()
