"""Tool-call parsers by name, named as in vLLM.

    base.py            the parser protocol, and functions that parsers share
    from_renderers.py  parsers of the library `renderers`
    hermes.py          Hermes, also of Qwen 2.5 and 3
    llama3_json.py     Llama 3.1 and later
    mistral.py         Mistral
    qwen3_coder.py     Qwen 3 Coder and 3.5

For replies in which the server left the calls as text, and for servers that never saw `tools`.
"""

from __future__ import annotations

from importlib import import_module

from hermes_queue.agent.parsers.base import CallStatus, ParsedCall, ParsedReply, ToolCallParser
from hermes_queue.agent.parsers.from_renderers import FAMILIES, RenderersParser
from hermes_queue.errors import ConfigurationError

__all__ = [
    "CallStatus",
    "ParsedCall",
    "ParsedReply",
    "ToolCallParser",
    "known_parsers",
    "load_parser",
]

_OWN = ("hermes", "llama3_json", "mistral", "qwen3_coder")


def known_parsers() -> list[str]:
    """Names of the parsers that are part of hermes-queue; some need the extra `renderers`."""
    return sorted([*_OWN, *FAMILIES])


def load_parser(name: str) -> ToolCallParser:
    """The parser called `name`: a known one, or `package.module:ATTRIBUTE`.

    Raises:
        ConfigurationError: there is no such parser (the message lists the known ones), or its
            library is not installed.
    """
    if name in FAMILIES:
        parser = RenderersParser(name)
        parser.require()
        return parser
    if ":" in name:
        module, _, attribute = name.partition(":")
    elif name in _OWN:
        module, attribute = f"{__name__}.{name}", "PARSER"
    else:
        raise ConfigurationError(
            f"tool-call parser {name!r} is unknown; known: {', '.join(known_parsers())}; "
            "your own: package.module:ATTRIBUTE"
        )
    try:
        loaded: ToolCallParser = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"tool-call parser {name!r} cannot be loaded: {error}") from error
    return loaded
