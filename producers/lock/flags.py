"""Flags as a lock holds them, without secrets."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints
from urllib.parse import parse_qsl, urlsplit

from hermes_queue.errors import ConfigurationError, InputError
from producers.run.flags import Options

if TYPE_CHECKING:
    from producers.run.options import ProducerOptions
    from producers.source import Producer

_GROUPS = (
    "rows",
    "agent",
    "run",
    "groups",
    "staleness",
    "limits",
    "budgets",
    "part",
    "known",
    "own",
)
"""Groups that say what a run is; others say how it is watched and where it runs."""
_LEFT_OUT = {"run_id", "concurrency"}
_KEYED = ("--sampling", "--agent-param")
"""Flags that may be repeated with other keys: KEY=VALUE."""
_SECRET = re.compile(
    r"(^|_)(API_?KEY|APIKEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PWD|CREDENTIALS?|AUTH|"
    r"AUTHORIZATION|BEARER|COOKIE|SIG|SIGNATURE|PAT)$",
    re.IGNORECASE,
)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s,'\"]+", re.IGNORECASE)
_DEPTH_MAX = 20


def flags_of(producer: Producer, options: ProducerOptions) -> tuple[list[str], list[str]]:
    """The flags that differ from their defaults, as words; and those left out for their secrets."""
    words: list[str] = []
    masked: list[str] = []
    for group in _GROUPS:
        of_group: Options = getattr(options, group)
        default = {"env": producer.env} if group == "run" else {}
        for each in fields(of_group):
            value = getattr(of_group, each.name)
            if each.name in _LEFT_OUT or value == default.get(each.name, each.default):
                continue
            name = _spelled(each)
            if isinstance(value, tuple) and each.default != ():  # bounds, LOW-HIGH
                value = "-".join(map(str, value))
            for word, key, content in _words(name, value):
                if has_secret(content, key):
                    masked.append(f"{name} {key}=***" if key else name)
                else:
                    words.append(word)
    return words, sorted(set(masked))


def _words(name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Each word of a flag, with the key and the value that may be secret."""
    if value is True:
        yield name, "", None
    elif isinstance(value, tuple):
        for each in value:
            if isinstance(each, tuple):
                key, content = each
                yield f"{name}={key}={json.dumps(content)}", key, content
            else:
                yield f"{name}={each}", "", each
    else:
        yield f"{name}={value}", "", value


def has_secret(value: Any, key: str = "", depth: int = 0) -> bool:
    """Whether a value, or one inside it, is or has a secret, as far as one can tell."""
    words = re.sub(r"[^A-Za-z0-9]|(?<=[a-z0-9])(?=[A-Z])", "_", key)
    if any(map(_SECRET.search, (words, key))) and value not in (None, ""):
        return True
    if depth > _DEPTH_MAX:
        return True
    if isinstance(value, Mapping):
        return any(has_secret(each, str(name), depth + 1) for name, each in value.items())
    if isinstance(value, list | tuple):
        return any(has_secret(each, "", depth + 1) for each in value)
    if not isinstance(value, str | Path):
        return False
    from hermes_queue.telemetry.scrubbing import scrub

    text = str(value)
    return scrub(text) != text or "Bearer " in text or any(map(_url_secret, _URL.findall(text)))


def _url_secret(url: str) -> bool:
    try:
        parts = urlsplit(url)
        pairs = [*parse_qsl(parts.query), *parse_qsl(parts.fragment)]
    except ValueError:
        return True
    return "@" in parts.netloc or any(has_secret(value, name) for name, value in pairs)


def with_lock(producer: Producer, argv: Sequence[str] | None) -> Sequence[str] | None:
    """The command line with the flags of its `--from-lock` before its own; as it is without one.

    Raises:
        InputError: the file is no lock.
        ConfigurationError: it is another producer's, or a flag has to be given that it leaves out.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if not any(word.partition("=")[0] == "--from-lock" for word in words):
        return argv
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--from-lock", nargs="?")
    path = first.parse_known_args(words)[0].from_lock
    if not path:
        return argv
    from producers.lock.contents import read_lock  # with pydantic, which `--help` does not need

    lock = read_lock(Path(path))
    known = _flag_names(producer)
    if foreign := [word for word in lock.flags if word.partition("=")[0] not in known]:
        raise InputError(
            f"--from-lock {path}: flags: {foreign[0][:80]!a} is no flag that says what a run is"
        )
    if lock.producer != producer.name:
        raise ConfigurationError(
            f"--from-lock {path}: is of producer {lock.producer!r}; run python -m producers "
            f"{lock.producer} --from-lock {path}"
        )
    given = set(_named(words))
    if missing := [each for each in lock.masked if each.removesuffix("=***") not in given]:
        raise ConfigurationError(
            f"--from-lock {path}: the lock leaves secrets out: give {', '.join(missing)} again"
        )
    kept = [word for word in lock.flags if not given.intersection(_named([word]))]
    return [*kept, *words]


def _flag_names(producer: Producer) -> set[str]:
    """Flags that a lock may hold: one from elsewhere names no file to write."""
    from producers.run.options import ProducerOptions  # which imports this module

    groups = get_type_hints(ProducerOptions) | {"own": producer.options}
    return {
        _spelled(each)
        for group in _GROUPS
        for each in fields(groups[group])
        if each.name not in _LEFT_OUT
    }


def _spelled(flag: Field[Any]) -> str:
    return str(flag.metadata["spelled"] or "--" + flag.name.replace("_", "-"))


def _named(words: Iterable[str]) -> Iterator[str]:
    """What each word sets: a flag, or a flag with its key."""
    waiting = ""
    for word in words:
        if waiting:
            yield f"{waiting} {word.partition('=')[0]}"
            waiting = ""
            continue
        if not word.startswith("--"):
            continue
        name, equals, value = word.partition("=")
        if name not in _KEYED:
            yield name
        elif equals:
            yield f"{name} {value.partition('=')[0]}"
        else:
            waiting = name
