"""Model servers that take and return token ids, with one file per kind of server.

base.py    the contract of a server, and readers of its answers
sglang.py  SGLang
vllm.py    vLLM

Message mode does not know the kind of its server and uses the facts of all bundled ones. Token
mode also uses those of the server that the job names.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hermes_queue import extensions
from hermes_queue.agent.tokens.servers.base import HttpPost, Server, TokenServer
from hermes_queue.errors import ConfigurationError, ModelConfigError


@cache
def own_servers() -> Mapping[str, Server]:
    """The servers of this package, by name."""
    return {name: load_server(name) for name in extensions.own("token_server")}


def load_server(name: str) -> Server:
    """A kind of server by name, see `extensions.load`. Raises ModelConfigError."""
    try:
        server: Server = extensions.load("token_server", name)
    except ConfigurationError as error:
        raise ModelConfigError(f"agent openai: {error}") from error
    return server


def connect(name: str, post: HttpPost, model: str) -> TokenServer:
    """The client of `model` at a server of a kind. Raises ModelConfigError: it cannot be one."""
    client = load_server(name).connect(post, model)
    contract = f"{TokenServer.__module__}:TokenServer"
    if problem := extensions.violation(contract, client):
        raise ModelConfigError(
            f"token server {name!r}: connect() returns a {type(client).__name__} that {problem}: "
            f"see {contract}"
        )
    return client
