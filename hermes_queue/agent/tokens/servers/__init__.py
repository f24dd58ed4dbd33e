"""Model servers that take and give token ids: one file holds all that is known of one.

base.py    the contract of a server, and readers of its answers
sglang.py  SGLang
vllm.py    vLLM

Message mode does not know whom it talks to and goes by what is known of all of ours; token mode
goes by what is known of the one that the job names, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hermes_queue import extensions
from hermes_queue.agent.tokens.servers.base import Server
from hermes_queue.errors import ConfigurationError, ModelConfigError


@cache
def own_servers() -> Mapping[str, Server]:
    """Those in this package, by name."""
    return {name: load_server(name) for name in extensions.own("token_server")}


def load_server(name: str) -> Server:
    """The server called `name`: one of ours, `package.module:SERVER`, or that of a plugin.

    Raises:
        ModelConfigError: see `hermes_queue.extensions.load`.
    """
    try:
        server: Server = extensions.load("token_server", name)
    except ConfigurationError as error:
        raise ModelConfigError(f"agent openai: {error}") from error
    return server
