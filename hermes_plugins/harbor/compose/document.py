"""A compose file as plain values: YAML within bounds, with its variables filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hermes_queue.errors import EnvBug

MAX_FILE_BYTES = 64 << 10
MAX_EVENTS, MAX_DEPTH, MAX_ALIASES = 5000, 20, 16
"""Of the parser. Merged and repeated parts multiply with the number of aliases."""
MAX_KEY_BITS = 64
MAX_VALUES = 20_000
"""In the whole file, repeated parts counted each time."""

_VARIABLE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<plain>[A-Za-z_]\w*)|"
    r"\{(?P<name>[A-Za-z_]\w*)(?:(?P<operator>:?[-+?])(?P<text>[^{}]*))?\})"
)


def read_document(data: bytes, variables: Mapping[str, str], place: str) -> dict[str, Any]:
    """Parse a compose file and fill in its variables.

    Args:
        data: its bytes, from a stranger.
        variables: all that it may use.
        place: the file, for messages.

    Raises:
        EnvBug: it is no YAML, larger or deeper than this module allows, or uses a variable that is
            not known and has no default.
    """
    if len(data) > MAX_FILE_BYTES:
        raise EnvBug(f"{place}: has more than {MAX_FILE_BYTES} bytes")
    document = parsed(data, place)
    if not isinstance(document, dict):
        raise EnvBug(f"{place}: is no compose file: its top is no mapping")
    filled = _Filler(variables, place).filled(document, 0)
    assert isinstance(filled, dict)  # noqa: S101 - as the document is
    return filled


def parsed(data: bytes, place: str) -> Any:
    """The values of a YAML file from a stranger. Raises EnvBug: as `read_document`."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise EnvBug(f"{place}: needs PyYAML: pip install 'hermes-queue[docker]'") from error
    try:
        text = data.decode("utf-8-sig")
        _check_size(yaml.parse(text, Loader=yaml.SafeLoader), place)
        return yaml.load(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise EnvBug(f"{place}: is not YAML: {str(error)[:500]}") from error


def _check_size(events: Any, place: str) -> None:
    """Refuse files that grow when they are loaded; the events come one by one."""
    depth = aliases = 0
    for number, event in enumerate(events):
        kind = type(event).__name__
        depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        aliases += kind == "AliasEvent"
        if number > MAX_EVENTS or depth > MAX_DEPTH or aliases > MAX_ALIASES:
            raise EnvBug(
                f"{place}: has more than {MAX_EVENTS} parts, {MAX_DEPTH} levels or {MAX_ALIASES} "
                "aliases"
            )


class _Filler:
    def __init__(self, variables: Mapping[str, str], place: str) -> None:
        self._variables = variables
        self._place = place
        self._count = 0

    def filled(self, value: Any, depth: int) -> Any:
        """The value with its variables filled in; copies what aliases share."""
        self._count += 1
        if self._count > MAX_VALUES or depth > MAX_DEPTH:
            raise EnvBug(f"{self._place}: has more than {MAX_VALUES} values")
        if isinstance(value, str):
            return _VARIABLE.sub(self._value, value)
        if isinstance(value, dict):
            return {self._key(key): self.filled(each, depth + 1) for key, each in value.items()}
        if isinstance(value, list | tuple | set):
            return [self.filled(each, depth + 1) for each in value]
        return value

    def _key(self, key: Any) -> str:
        if isinstance(key, int) and key.bit_length() > MAX_KEY_BITS:
            raise EnvBug(f"{self._place}: a key is a number of {key.bit_length()} bits")
        return str(key)

    def _value(self, match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        name, operator, text = match["plain"] or match["name"], match["operator"], match["text"]
        found = self._variables.get(name)
        if operator and operator.startswith(":"):
            found = found or None
        if operator and operator.endswith("+"):
            return "" if found is None else str(text)
        if found is not None:
            return found
        if operator and operator.endswith("-"):
            return str(text)
        shown = name[:100]
        raise EnvBug(
            f"{self._place}: uses ${{{shown}}}, which tasks may not read or which is not set here: "
            f'add "{shown}" to HERMES_QUEUE_HARBOR_ENV if the agent may know its value, or give it '
            f"a default, ${{{shown}:-...}}"
        )
