"""The only network of a build: a port on its loopback, answered by the worker.

A build runs the code of packages, so its sandbox has a network namespace without a way out: not
to the host's loopback, where Redis may listen, nor to abstract sockets, neighbours or a cloud's
metadata. Before its script starts, a socket that listens *in that namespace* is made and passed
to the worker, which serves it with a `BuildProxy`. So no process of ours runs beside the build,
which could stop or imitate it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import AssetSpec, ExecutionResult
from hermes_queue.sandbox.builds.hosts import BuildHosts
from hermes_queue.sandbox.builds.proxy import BuildProxy
from hermes_queue.sandbox.host import pip as pip_settings
from hermes_queue.sandbox.local.slot import LocalSlot

logger = logging.getLogger(__name__)

LISTEN_TIMEOUT_S = 60.0
HAND_OVER = """
import array, socket, sys
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(64)
with socket.socket(socket.AF_UNIX) as channel:
    channel.connect(sys.argv[1])
    rights = array.array("i", [listener.fileno()])
    channel.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
"""
"""For any Python 3. It runs before any foreign code."""
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


async def run_fenced(
    slot: LocalSlot, spec: AssetSpec, pip: pip_settings.PipSettings, named_hosts: str
) -> ExecutionResult:
    """Run the script of `spec` without network; its output names refused connections.

    `slot` is fresh, with the asset's directory mounted; `named_hosts` is the setting
    `LOCAL_BUILD_HOSTS`. Raises SandboxError: the slot failed.
    """
    proxy = BuildProxy(BuildHosts.of(dict(pip.environment), named_hosts))
    listener = await _listener_inside(slot)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    environment = {
        name: value for name, value in pip.environment if name.lower() not in PROXY_VARIABLES
    }
    for name in PROXY_VARIABLES[:-1]:
        environment |= {name: url, name.upper(): url}
    try:
        proxy.serve(listener)
        result = await slot.run(
            ["/bin/bash", "-eu"],
            script=spec.script,
            env={**environment, "PIP_PROXY": url, "HQ_PIP": pip_settings.COMMAND},
            cwd=spec.mount,
            timeout_s=spec.timeout_s,
        )
    finally:
        await proxy.close()
    for refusal in proxy.refusals:
        logger.warning(
            "%s %s: %s", spec.kind, spec.key[:12], refusal, extra={"action": "build_refused"}
        )
    lines = "".join(f"\nConnection refused by the worker: {text}" for text in proxy.refusals)
    return dataclasses.replace(result, stderr=result.stderr + lines.encode())


async def _listener_inside(slot: LocalSlot) -> socket.socket:
    """A socket that listens on the loopback of the slot's network namespace."""
    name = f"hand-over-{secrets.token_hex(8)}"
    with _channel(slot.fence.directories.tmp, name) as channel:
        made = await slot.run(
            ["python3", "-I", "-S", "-c", HAND_OVER, f"/tmp/{name}"],  # noqa: S108 - the slot's
            cwd="/",
            timeout_s=LISTEN_TIMEOUT_S,
        )
        if not made.ok:
            raise SandboxError(f"the build's network cannot be made: {made.output.strip()[-500:]}")
        return _received(channel)


@contextlib.contextmanager
def _channel(directory: Path, name: str) -> Iterator[socket.socket]:
    """A socket that listens at `name`.

    It is bound via its directory, because socket paths must be short.
    """
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as channel:
            channel.bind(f"/proc/self/fd/{place}/{name}")
            try:
                os.chmod(name, 0o666, dir_fd=place)  # noqa: S103 - the directory is the slot's
                channel.listen(1)
                yield channel
            finally:
                os.unlink(name, dir_fd=place)
    finally:
        os.close(place)


def _received(channel: socket.socket) -> socket.socket:
    """The listening socket that was sent; the sender has ended, so this does not wait."""
    size = socket.CMSG_SPACE(4)
    try:
        with channel.accept()[0] as sender:
            sender.setblocking(False)
            _, ancillary, _, _ = sender.recvmsg(1, size, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"the build's network cannot be made: {error}") from error
    for _, _, data in ancillary:
        listener = socket.socket(fileno=int.from_bytes(data[:4], "little"))
        if listener.family == socket.AF_INET and listener.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            return listener
        listener.close()
    raise SandboxError("the build's network cannot be made: no listening socket arrived")
