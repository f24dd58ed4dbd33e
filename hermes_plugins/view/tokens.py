"""Tokens, and the sessions that they open.

A token is 256 random bits in a file that only its owner reads. It is shown once, behind the `#` of
an address, which browsers do not send; the page posts it, and gets a cookie. The cookie says who
its bearer is and is signed with the token, so it is good for as long as the token is, also after a
restart, and nothing is kept of sessions here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import stat
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hermes_plugins.view.answers import Refusal
from hermes_queue.errors import ConfigurationError
from hermes_queue.settings import private_directory

Role = Literal["view", "operate"]
ROLES: tuple[Role, ...] = ("view", "operate")

TOKEN_MIN = 16
"""Characters of a token that somebody chose."""
TOKEN_MAX = 256
NAME_MAX = 64
SESSION_S = 14 * 86400
WRONG_MAX = 10
WRONG_WINDOW_S = 60.0
_ADDRESSES_MAX = 1024
_COOKIE_MAX = 1024


@dataclass(frozen=True, slots=True)
class ViewSession:
    """Who asks."""

    role: Role | None = None
    name: str = ""
    """As typed at login; "" = somebody with a token."""

    def may(self, role: Role | None) -> bool:
        """Whether this role, or none, is enough."""
        return role is None or self.role == "operate" or self.role == role


class Attempts:
    """Counts wrong tokens by address, and refuses further ones for a while. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, address: str) -> None:
        """Raise Refusal after ten wrong tokens within a minute, whatever the next one is."""
        with self._lock:
            times = self._wrong.get(_network(address))
            now = self._clock()
            while times and times[0] <= now - WRONG_WINDOW_S:
                times.popleft()
            if times and len(times) >= WRONG_MAX:
                wait_s = max(1, round(times[0] + WRONG_WINDOW_S - now))
                raise Refusal(
                    429,
                    "too many wrong tokens",
                    f"try again in {wait_s} s",
                    Retry_After=str(wait_s),
                )

    def count(self, address: str) -> None:
        """A token was wrong."""
        with self._lock:
            network = _network(address)
            self._wrong.setdefault(network, deque(maxlen=WRONG_MAX)).append(self._clock())
            self._wrong.move_to_end(network)
            while len(self._wrong) > _ADDRESSES_MAX:
                self._wrong.popitem(last=False)


def _network(address: str) -> str:
    """Whom to count together: one machine may have all addresses of an IPv6 network."""
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found, 64), strict=False))


class Keys:
    """The tokens in force, by role."""

    def __init__(
        self, tokens: Mapping[Role, str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._tokens = dict(tokens)
        self._clock = clock
        self.attempts = Attempts()

    def token(self, role: Role) -> str:
        """The token of a role that there is."""
        return self._tokens[role]

    def of_token(self, token: str, address: str) -> Role:
        """The role that a token opens.

        Raises:
            Refusal: it opens none, or there were too many wrong ones.
        """
        self.attempts.check(address)
        found: Role | None = None
        for role, ours in self._tokens.items():  # all of them: the time says nothing
            if hmac.compare_digest(ours.encode(), token.encode("utf-8", "replace")):
                found = role
        if found is None:
            self.attempts.count(address)
            raise Refusal(401, "the token is not valid", "start `hermes-queue view` to see it")
        return found

    def seal(self, session: ViewSession) -> str:
        """The session as the value of a cookie."""
        if session.role is None:
            raise ValueError("nobody")
        until = int(self._clock()) + SESSION_S
        said = _written(json.dumps([session.name, until]).encode())
        return f"{said}.{self._signature(session.role, said)}"

    def open(self, cookie: str) -> ViewSession:
        """The session in a cookie; nobody's if it is forged, too old, or of another token."""
        said, _, signature = cookie.partition(".")
        if len(cookie) > _COOKIE_MAX or not cookie.isascii():
            return ViewSession()
        for role in self._tokens:
            if hmac.compare_digest(self._signature(role, said), signature):
                name, until = json.loads(_read(said))
                if until > self._clock():
                    return ViewSession(role, name)
        return ViewSession()

    def _signature(self, role: Role, said: str) -> str:
        purpose = f"hermes-queue view cookie {role}"
        key = hmac.digest(self._tokens[role].encode(), purpose.encode(), "sha256")
        return _written(hmac.digest(key, said.encode(), hashlib.sha256))


def _written(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def _read(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def check_chosen(token: str, setting: str) -> str:
    """A token that was set by hand.

    Raises:
        ConfigurationError: it is too short to resist guessing, or no text for a header.
    """
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX or not token.isascii() or not token.isprintable():
        raise ConfigurationError(
            f"{setting} must have {TOKEN_MIN} to {TOKEN_MAX} printable ASCII characters; "
            "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token


def kept_token(directory: Path, name: str) -> str:
    """The token in a file of a private directory, which is made if it is missing.

    Raises:
        ConfigurationError: others could read or replace the file, or it cannot be used.
    """
    path = directory / name
    try:
        _check_owner(os.lstat(private_directory(directory)), directory, stat.S_ISDIR)
        _make(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _check_owner(os.fstat(descriptor), path, stat.S_ISREG)
            token = file.read(TOKEN_MAX + 2).decode("ascii", "replace").strip()
    except OSError as error:
        raise ConfigurationError(
            f"{path}: {error.strerror}; delete it, or set HERMES_QUEUE_PATHS_CACHE to a directory "
            "of yours"
        ) from error
    return check_chosen(token, str(path))


def _make(path: Path) -> None:
    """Write a new token beside `path` and link it there: a reader never finds half of one."""
    if os.path.lexists(path):
        return
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        try:
            os.link(draft, path)
        except FileExistsError:  # another process was first: its token counts
            pass
    finally:
        os.unlink(draft)


def _check_owner(found: os.stat_result, path: Path, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(found.st_mode):
        raise ConfigurationError(f"{path} is not what it should be; delete it")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigurationError(
            f"{path} can be read by others, or belongs to somebody else; "
            f"correct it: chown {os.geteuid()} {path}; chmod go= {path}"
        )
