"""Keeps secrets out of everything that is written: log lines, records, dead letters.

`MASK` replaces the values of environment variables whose name suggests a secret, passwords in
URLs, and texts in the format of a well-known kind of key. Secrets that were encoded (base64,
token ids) or cut are not found: see docs/logging.md.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import chain
from typing import Any, Literal, TypeVar, get_origin
from urllib.parse import unquote, urlsplit

from hermes_queue.models import AttemptRecord, ScoredTrajectory, Wire
from hermes_queue.settings import LogSettings

MASK = "***"
MIN_LENGTH = 8
"""Shorter values of variables are left alone: replacing "none" or "1" would destroy every text."""
_MIN_LINE = 16
"""In a secret of several lines, each line of at least this length counts as a secret."""
MAX_DEPTH = 80
"""Nesting of lists and mappings that is searched; agents and environments may nest less."""
TOO_DEEP = "(nested too deep to be searched for secrets)"

_SECRET_NAME = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|PAT)"
    r"(_ID|_JSON|_B64)?$"
)
_URL_NAME = re.compile(r"(^|_)(URL|URI|DSN|PROXY|ENDPOINT)$")

_TOKEN_HEAD = re.compile(r"\beyJ[\w-]{10,}")
_TOKEN_PART = 10
"""Least length of the second and the third part of a JSON web token."""


def _mask_tokens(dotted: re.Match[str]) -> str:
    """Replace the JSON web tokens in a run of words and dots.

    A single pattern for a whole token would rescan the rest of the run at each `eyJ` in it.
    """
    parts = dotted[0].split(".")
    found: list[str] = []
    at = 0
    while at < len(parts):
        head = None
        if at + 2 < len(parts) and min(map(len, parts[at + 1 : at + 3])) >= _TOKEN_PART:
            head = _TOKEN_HEAD.search(parts[at])
        if head:
            found.append(parts[at][: head.start()] + MASK)
            at += 3
        else:
            found.append(parts[at])
            at += 1
    return ".".join(found)


_PATTERNS: tuple[tuple[tuple[str, ...], str, str | Callable[..., str]], ...] = (
    # A hint that the text must contain, the pattern, and the replacement. A pattern must take
    # linear time: one that can start at many places and scan to a distant end does not. It also
    # runs on text that an agent wrote, and blocks the rest of the process meanwhile.
    (("://",), r"(://[^\s/:@'\"<>]*):[^\s/@'\"<>]+@", rf"\1:{MASK}@"),
    (("sk-",), r"\bsk-[A-Za-z0-9_-]{16,}", MASK),
    (("hf_",), r"\bhf_[A-Za-z0-9]{20,}", MASK),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\bgh[pousr]_[A-Za-z0-9]{30,}", MASK),
    (("github_pat_",), r"\bgithub_pat_[A-Za-z0-9_]{22,}", MASK),
    (("glpat-",), r"\bglpat-[A-Za-z0-9_-]{20,}", MASK),
    (("xox",), r"\bxox[abeprs]-[A-Za-z0-9-]{10,}", MASK),
    (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", MASK),
    (("AIza",), r"\bAIza[0-9A-Za-z_-]{35}", MASK),
    (("hq-",), r"\bhq-[0-9a-f]{64}\b", MASK),  # of a program's endpoint, see AttemptSession
    (("ak-", "as-"), r"\b(?:ak|as)-[A-Za-z0-9]{20,}\b", MASK),  # Modal
    (("eyJ",), r"(?<![\w-])[\w-]++(?:\.[\w-]++){2,}+", _mask_tokens),  # JWT
    (
        ("-----BEGIN",),
        r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
        MASK,
    ),
    (
        ("earer ", "EARER "),
        r"(?i)\b(bearer +)(?=\S*\d)[A-Za-z0-9._~+/=-]{16,}",
        rf"\1{MASK}",
    ),
    (
        ("uthorization", "UTHORIZATION"),
        r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token)\s+)[^\s'\"]{8,}",
        rf"\1{MASK}",
    ),
)
_FORMS = tuple((hints, re.compile(form), new) for hints, form, new in _PATTERNS)
_HINTS = tuple(hint for hints, _, _ in _PATTERNS for hint in hints)

T = TypeVar("T")
W = TypeVar("W", bound=Wire)


class Scrubber:
    """Replaces secrets in texts, structures and records. Immutable."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Create a scrubber.

        Args:
            secrets: texts to replace.
        """
        parts = {part for secret in secrets for part in _parts(secret)}
        # Longest first: replacing a shorter secret would cut one that contains it.
        self._secrets = sorted(parts, key=len, reverse=True)

    @classmethod
    def of(cls, environment: Mapping[str, str], names: Iterable[str] = ()) -> Scrubber:
        """A scrubber for an environment: values of secret variables, passwords in URLs, headers.

        Args:
            environment: variable -> value.
            names: further variables whose values are secret.
        """
        further = {name.strip().upper() for name in names}
        secrets: list[str] = []
        for name, value in environment.items():
            upper = name.upper()
            is_path = value.startswith("/") and os.path.exists(value)
            if upper in further or (_SECRET_NAME.search(upper) and not is_path):
                secrets.append(value)
            if upper.endswith("_HEADERS"):
                secrets += _header_values(value)
            if _URL_NAME.search(upper):
                for url in value.split(","):
                    secrets += _url_passwords(url)
        return cls(secrets)

    def text(self, text: str) -> str:
        """`text` without secrets."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        if not _hints_at_keys(text):
            return text
        for hints, form, replacement in _FORMS:
            if any(hint in text for hint in hints):
                text = form.sub(replacement, text)
        return text

    def tree(self, value: T) -> T:
        """A structure of mappings, lists and texts without secrets in values and keys.

        Parts nested deeper than `MAX_DEPTH` are replaced as a whole. Returns the same object if
        there was nothing to replace.
        """
        clean: T = self._tree(value, MAX_DEPTH)
        return clean

    def _tree(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            clean = self.text(value)
            return value if clean == value else clean
        if not isinstance(value, Mapping | list | tuple):
            return value
        if depth == 0:
            return TOO_DEEP
        if isinstance(value, Mapping):
            names = self._names(value)
            pairs = [(names[key], key, self._tree(value[key], depth - 1)) for key in value]
            if all(name is key and each is value[key] for name, key, each in pairs):
                return value
            return {name: each for name, _, each in pairs}
        items = [self._tree(each, depth - 1) for each in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if isinstance(value, list) else tuple(items)

    def _names(self, mapping: Mapping[Any, Any]) -> dict[Any, Any]:
        """Each key's clean name; names that would collide are numbered."""
        names: dict[Any, Any] = {key: key for key in mapping}
        taken: set[Any] | None = None
        for key in mapping:
            if not isinstance(key, str) or (clean := self.text(key)) == key:
                continue
            if taken is None:
                taken = set(mapping)
            name, number = clean, 1
            while name in taken:
                number += 1
                name = f"{clean} ({number})"
            taken.add(name)
            names[key] = name
        return names

    def record(self, record: ScoredTrajectory) -> ScoredTrajectory:
        """A record without secrets; an event lists the fields in which one was replaced.

        Token ids stay, since they are the server's own; a trainer that wants no such
        trajectories can filter by the event. Ids that identify records stay too, and so do
        fields with a fixed vocabulary.
        """
        if self._is_clean(record):
            return record
        changed = self._changes(record)
        if not changed:
            return record
        event = {"turn": len(record.turns), "event": "secrets_scrubbed", "fields": sorted(changed)}
        changed["events"] = (*changed.get("events", record.events), event)
        return record.model_copy(update=changed)

    def finds(self, model: Wire) -> bool:
        """Whether there is a secret to replace in it."""
        return not self._is_clean(model) and bool(self._changes(model))

    def _is_clean(self, record: Wire) -> bool:
        """Whether there is surely nothing to replace: one search in all texts, instead of many."""
        texts: list[str] = []
        if not _collect_texts([record], texts, MAX_DEPTH):
            return False
        text = "\n".join(texts)
        return not _hints_at_keys(text) and not any(secret in text for secret in self._secrets)

    def attempt(self, attempt: AttemptRecord) -> AttemptRecord:
        """The record of a failed attempt, without secrets."""
        return self._wire(attempt)

    def _wire(self, model: W) -> W:
        changed = self._changes(model)
        return model.model_copy(update=changed) if changed else model

    def _changes(self, model: Wire) -> dict[str, Any]:
        found = {name: self._field(getattr(model, name)) for name in _free_fields(type(model))}
        return {name: new for name, new in found.items() if new is not getattr(model, name)}

    def _field(self, value: Any) -> Any:
        if isinstance(value, Wire):
            return self._wire(value)
        if isinstance(value, tuple) and value and isinstance(value[0], Wire):
            clean = tuple(self._wire(each) for each in value)
            return value if all(map(_same, clean, value)) else clean
        return self.tree(value)


_same = operator.is_
_NUMBERS = {"prompt_ids", "completion_ids", "logprobs", "ids", "loss_mask"}
"""Numbers, of any length."""
_KEPT: dict[type[Wire], set[str]] = {ScoredTrajectory: {"env", "instance_id", "requeued_from"}}
"""Fields that identify a record, beside its ids, which are `Name`s."""


def _hints_at_keys(text: str) -> bool:
    for hint in _HINTS:
        if hint in text:
            return True
    return False


def _collect_texts(parts: Iterable[Any], texts: list[str], depth: int) -> bool:
    """Add all texts that may hold a secret; False if there may be more below `depth`."""
    for part in parts:
        kind = type(part)
        if kind is str:
            texts.append(part)
        elif part and kind not in _TEXTLESS:
            if isinstance(part, str) or depth == 0:
                return False
            if not _collect_texts(_parts_of(part), texts, depth - 1):
                return False
    return True


_TEXTLESS = {int, float, bool}


def _parts_of(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return chain(value, value.values())
    if isinstance(value, Wire):
        return _free_values(type(value))(value)
    if isinstance(value, Mapping):
        return chain(value, map(value.__getitem__, value))
    return ()


@cache
def _free_values(model: type[Wire]) -> Callable[[Wire], Iterable[Any]]:
    """Returns the values of `_free_fields`."""
    names = _free_fields(model)
    if len(names) < 2:
        return lambda value: [getattr(value, name) for name in names]
    get: Callable[[Wire], Iterable[Any]] = operator.attrgetter(*names)
    return get


@cache
def _free_fields(model: type[Wire]) -> tuple[str, ...]:
    """Fields that may hold any text: not numbers, fixed vocabulary, or ids of a narrow pattern."""
    return tuple(
        name
        for name, field in model.model_fields.items()
        if name not in _NUMBERS | _KEPT.get(model, set())
        and get_origin(field.annotation) is not Literal
        and not any(getattr(each, "pattern", None) for each in field.metadata)
    )


def _parts(secret: str) -> Iterable[str]:
    secret = secret.strip()
    if len(secret) >= MIN_LENGTH:
        yield secret
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= _MIN_LINE)


def _header_values(headers: str) -> Iterable[str]:
    """The values of `name=value,name=value`, as they are written and as they are sent."""
    for pair in headers.split(","):
        value = pair.partition("=")[2].strip()
        for form in (value, unquote(value)):
            yield form
            yield form.rpartition(" ")[2]  # what follows `Bearer`


def _url_passwords(url: str) -> list[str]:
    try:
        password = urlsplit(url.strip()).password
    except ValueError:
        return []
    return [password, unquote(password)] if password else []


@cache
def scrubber() -> Scrubber:
    """The scrubber of this process, created from its environment on first use."""
    return Scrubber.of(os.environ, LogSettings().scrub_env.split(","))


def scrub(text: str) -> str:
    """`text` without secrets of this process's environment and of well-known formats."""
    return scrubber().text(text)
