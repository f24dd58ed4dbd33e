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

from hermes_queue import extensions
from hermes_queue.agent.parsers.base import ToolCallParser as ToolCallParser
from hermes_queue.agent.parsers.from_renderers import FAMILIES, RenderersParser


def load_parser(name: str) -> ToolCallParser:
    """A parser by name, see `extensions.load`. Raises ConfigurationError."""
    if name in FAMILIES:
        return RenderersParser(name)
    loaded: ToolCallParser = extensions.load("parser", name, also=FAMILIES)
    return loaded
