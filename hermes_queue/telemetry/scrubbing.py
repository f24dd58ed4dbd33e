"""Keeps secrets out of what is written down: log lines, records, dead letters.

Replaced by `MASK` are the values of environment variables whose name says that they are secret,
passwords in URLs, and texts that have the form of a well-known kind of key. What a secret was
encoded as (base64, token ids) or cut to is not found: see docs/logging.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from hermes_queue.models import AttemptRecord, Message, ScoredTrajectory, Turn, Wire
from hermes_queue.settings import LogSettings

MASK = "***"
MIN_LENGTH = 8
"""Shorter values of variables are left alone: replacing "none" or "1" would shred every text."""
_MIN_LINE = 16
"""Of secrets with several lines each line of this length is one by itself."""

_SECRET_NAME = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|PAT)"
    r"(_ID|_JSON|_B64)?$"
)
_URL_NAME = re.compile(r"(^|_)(URL|URI|DSN|PROXY)$")

_TOKEN_HEAD = re.compile(r"\beyJ[\w-]{10,}")
_TOKEN_PART = 10
"""Least characters of the second and the third part of a JSON web token."""


def _mask_tokens(dotted: re.Match[str]) -> str:
    """A run of words and dots with the JSON web tokens in it replaced.

    One pattern for a whole token would read the rest of the run anew at each `eyJ` in it.
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


_FORMS: tuple[tuple[tuple[str, ...], re.Pattern[str], str | Callable[..., str]], ...] = (
    # A hint that the text must contain, the form, and what stands in its place. The time that
    # a form takes must be linear in the text: a match that begins at many places and reads on
    # to a far end is not. What an agent wrote is matched here, too, and nothing else of the
    # process runs meanwhile.
    (
        ("://",),
        re.compile(r"(://[^\s/:@'\"<>]*):[^\s/@'\"<>]+@"),
        rf"\1:{MASK}@",
    ),
    (("sk-",), re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), MASK),
    (("hf_",), re.compile(r"\bhf_[A-Za-z0-9]{20,}"), MASK),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), re.compile(r"\bgh[pousr]_[A-Za-z0-9]{30,}"), MASK),
    (("github_pat_",), re.compile(r"\bgithub_pat_[A-Za-z0-9_]{22,}"), MASK),
    (("glpat-",), re.compile(r"\bglpat-[A-Za-z0-9_-]{20,}"), MASK),
    (("xox",), re.compile(r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"), MASK),
    (("AKIA", "ASIA"), re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), MASK),
    (("AIza",), re.compile(r"\bAIza[0-9A-Za-z_-]{35}"), MASK),
    (("ak-", "as-"), re.compile(r"\b(?:ak|as)-[A-Za-z0-9]{20,}\b"), MASK),  # Modal
    (("eyJ",), re.compile(r"(?<![\w-])[\w-]++(?:\.[\w-]++){2,}+"), _mask_tokens),  # JWT
    (
        ("-----BEGIN",),
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        MASK,
    ),
    (
        ("earer ", "EARER "),
        re.compile(r"\b(bearer +)(?=\S*\d)[A-Za-z0-9._~+/=-]{16,}", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    (
        ("uthorization", "UTHORIZATION"),
        re.compile(
            r"(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token)\s+)[^\s'\"]{8,}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
)

T = TypeVar("T")
W = TypeVar("W", bound=Wire)


class Scrubber:
    """Replaces secrets in texts, structures and records. Immutable."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Prepare.

        Args:
            secrets: texts that are secret in themselves.
        """
        parts = {part for secret in secrets for part in _parts(secret)}
        # Longest first: one that contains another must not be cut in two.
        self._secrets = sorted(parts, key=len, reverse=True)

    @classmethod
    def of(cls, environment: Mapping[str, str], names: Iterable[str] = ()) -> Scrubber:
        """With what the environment holds: values of secret variables, passwords in URLs.

        Args:
            environment: variables.
            names: of further variables whose values are secret.
        """
        further = {name.strip().upper() for name in names}
        secrets: list[str] = []
        for name, value in environment.items():
            upper = name.upper()
            is_path = value.startswith("/") and os.path.exists(value)
            if upper in further or (_SECRET_NAME.search(upper) and not is_path):
                secrets.append(value)
            if _URL_NAME.search(upper):
                for url in value.split(","):
                    secrets += _url_passwords(url)
        return cls(secrets)

    def text(self, text: str) -> str:
        """`text` without secrets."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        for hints, form, replacement in _FORMS:
            if any(hint in text for hint in hints):
                text = form.sub(replacement, text)
        return text

    def tree(self, value: T) -> T:
        """A structure of mappings, lists and texts without secrets; keys stay as they are.

        The same object when there was nothing to replace.
        """
        clean: Any = value
        if isinstance(value, str):
            clean = self.text(value)
        elif isinstance(value, Mapping):
            clean = {key: self.tree(each) for key, each in value.items()}
        elif isinstance(value, list | tuple):
            clean = type(value)(self.tree(each) for each in value)
        return value if clean == value else clean

    def record(self, record: ScoredTrajectory) -> ScoredTrajectory:
        """A record without secrets; an event tells that, and where, something was replaced.

        Token ids stay: they are the server's own, and a trainer that wants none of such
        trajectories goes by the event.
        """
        found: dict[str, Any] = {
            "agent": self._wire(record.agent),
            "failure": record.failure and self._wire(record.failure),
            "attempts": tuple(self.attempt(each) for each in record.attempts),
            "messages": tuple(self._message(each) for each in record.messages),
            "tools": self.tree(record.tools),
            "events": self.tree(record.events),
            "turns": tuple(self._turn(each) for each in record.turns),
            "report": self.tree(record.report),
        }
        changed = {name: new for name, new in found.items() if new != getattr(record, name)}
        if not changed:
            return record
        event = {"turn": len(record.turns), "event": "secrets_scrubbed", "fields": sorted(changed)}
        changed["events"] = (*changed.get("events", record.events), event)
        return record.model_copy(update=changed)

    def attempt(self, attempt: AttemptRecord) -> AttemptRecord:
        """What is kept of a failed attempt, without secrets."""
        return self._wire(attempt)

    def _wire(self, model: W) -> W:
        """For small models: all of its texts."""
        plain = model.model_dump()
        clean = self.tree(plain)
        return model if clean is plain else type(model).model_validate(clean)

    def _message(self, message: Message) -> Message:
        text = (message.content or "") + (message.reasoning or "")
        calls = "".join(call.function.arguments for call in message.tool_calls)
        if self.text(text) == text and self.text(calls) == calls:
            return message
        return self._wire(message)

    def _turn(self, turn: Turn) -> Turn:
        plain = {"sampling": turn.sampling, "server": turn.server}
        clean = self.tree(plain)
        return turn if clean is plain else turn.model_copy(update=clean)


def _parts(secret: str) -> Iterable[str]:
    secret = secret.strip()
    if len(secret) >= MIN_LENGTH:
        yield secret
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= _MIN_LINE)


def _url_passwords(url: str) -> list[str]:
    try:
        password = urlsplit(url.strip()).password
    except ValueError:
        return []
    return [password, unquote(password)] if password else []


@cache
def scrubber() -> Scrubber:
    """The scrubber of this process, made of its environment when it is first asked for."""
    return Scrubber.of(os.environ, LogSettings().scrub_env.split(","))


def scrub(text: str) -> str:
    """`text` without secrets of this process's environment and of well-known forms."""
    return scrubber().text(text)
