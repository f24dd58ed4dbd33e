"""Calls of scripts that travel together: one round trip for what is ready in the same moment."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import redis
from redis.exceptions import NoScriptError

from hermes_queue.errors import RedisUnavailable
from hermes_queue.keyspace import scripts
from hermes_queue.keyspace.connection import explanation

T = TypeVar("T")
U = TypeVar("U")

PIPELINE_BYTES = 1 << 20
"""About the most that calls which travel together may have. Their answers come together, too: a
lease that Redis grants in the first one is held by nobody until the last one is answered."""
PIPELINE_CALLS = 32
"""The most calls that travel together. With half of its slots a worker goes on while Redis executes
the calls of the others; in one pipeline for all, one would always wait for the other."""

STAGED_FROM_BYTES = 8 << 10
"""A value of this size or more is stored before its script runs: Lua hashes every byte of an
argument, which for 41 kB takes Redis as long as the rest of a publication."""
_MARK = "hermes-queue:confirmed"
"""Channel of an empty message that nobody reads; replicas get it after all earlier writes."""

STAGED_TTL_S = 300
"""After this time a value whose script never ran is gone."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Replicas that must have what a script wrote before its call succeeds."""

    replicas: int
    """Their number; the call fails if fewer have it in time."""
    timeout_s: float
    """Longest wait for them."""


@dataclass(frozen=True, slots=True)
class ScriptCall(Generic[T]):
    """One call of a script, to be made by `Deployment.make` or `make_all`."""

    script: str
    given: Mapping[str, Any]
    read: Callable[[Any], T]
    """Makes the result from the script's answer; runs in the thread that makes the call."""
    staged: bytes = b""
    """A value that is stored as `staged:{token}` in the same round trip, before the script runs."""
    confirm: Confirmation | None = None

    @property
    def weight(self) -> int:
        """Its part of `PIPELINE_BYTES`, as if each of `PIPELINE_CALLS` had as much at least."""
        size = sum(len(value) for value in self.given.values() if isinstance(value, bytes | str))
        return max(size + len(self.staged), PIPELINE_BYTES // PIPELINE_CALLS)

    @classmethod
    def of(cls, script: str, read: Callable[[Any], T], /, **given: Any) -> ScriptCall[T]:
        """The call of `script` by the names in its header."""
        return cls(script, given, read)

    @classmethod
    def with_body(
        cls, script: str, read: Callable[[Any], T], /, body: bytes, **given: Any
    ) -> ScriptCall[T]:
        """The call of a script that takes `body` as an argument or, a large one, as `staged`."""
        if len(body) < STAGED_FROM_BYTES:
            return cls(script, {**given, "body": body, "token": ""}, read)
        token = secrets.token_hex(8)
        return cls(script, {**given, "body": b"", "token": token}, read, body)

    def then(self, react: Callable[[T], U]) -> ScriptCall[U]:
        """The same call; its result is what `react` returns for ours."""
        read = self.read
        return ScriptCall(
            self.script,
            self.given,
            lambda answer: react(read(answer)),
            self.staged,
            self.confirm,
        )

    def confirmed(self, confirm: Confirmation | None) -> ScriptCall[T]:
        """The same call; its result is read once replicas have what was written, too.

        It is `RedisUnavailable` until then: what no replica has goes with a master that dies.
        """
        return replace(self, confirm=confirm)

    def within(self, context: Context, confirm: Confirmation | None = None) -> ScriptCall[T]:
        """The same call; its answer is read within `context`, and once it is confirmed."""
        read = self.read
        return replace(self, read=lambda answer: context.run(read, answer), confirm=confirm)


class _Packed(NamedTuple):
    """A call as it travels, and its place among all."""

    place: int
    script: scripts.Script
    keys: list[str]
    args: list[Any]
    staged: tuple[str, bytes] | None
    """Key and value that are stored before the script runs."""
    confirm: Confirmation | None


def make_all(
    client: redis.Redis, url: str, prefix: str, calls: Sequence[ScriptCall[Any]]
) -> list[Any]:
    """Make calls that do not depend on each other in one round trip.

    Returns, for each, its result or the exception that it would have raised alone: a call that
    fails does not concern the others. Each script may or may not have run if it is `RedisFull` or
    `RedisUnavailable`.
    """
    results: list[Any] = [None] * len(calls)
    packed = []
    for place, call in enumerate(calls):
        try:
            script = scripts.script(call.script)
            staged = None
            if call.staged:
                staged = f"{prefix}staged:{call.given['token']}", call.staged
            keys, args = script.packed(prefix, call.given)
            packed.append(_Packed(place, script, keys, args, staged, call.confirm))
        except Exception as error:  # noqa: BLE001 - it is the caller's of this call alone
            results[place] = error
    for each, answer in zip(packed, _answers(client, packed), strict=True):
        results[each.place] = _result(calls[each.place], each.script, url, answer)
    return results


def _result(call: ScriptCall[Any], script: scripts.Script, url: str, answer: Any) -> Any:
    if isinstance(answer, Exception):
        return explanation(url, answer)
    try:
        return call.read(script.answer(answer))
    except Exception as error:  # noqa: BLE001 - it is the caller's of this call alone
        return error


def _answers(client: redis.Redis, calls: Sequence[_Packed]) -> list[Any]:
    """An answer or an exception for each."""
    try:
        answers = _sent(client, calls)
        unknown = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:  # the first calls ever, or Redis was restarted
            for source in {calls[n].script.source for n in unknown}:
                client.script_load(source)
            again = _sent(client, [calls[n] for n in unknown])
            for n, answer in zip(unknown, again, strict=True):
                answers[n] = answer
        return answers
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        return [error] * len(calls)
    except (redis.RedisError, ValueError) as error:  # one of them cannot even be sent
        if len(calls) == 1:
            return [error]
    return [answer for each in calls for answer in _answers(client, [each])]


def _sent(client: redis.Redis, calls: Sequence[_Packed]) -> list[Any]:
    confirm = next((each.confirm for each in calls if each.confirm), None)
    with client.pipeline(transaction=False) as pipe:
        for each in calls:
            if each.staged:
                pipe.set(*each.staged, ex=STAGED_TTL_S)
            pipe.evalsha(each.script.sha1, len(each.keys), *each.keys, *each.args)
        if confirm:  # over the same connection: it waits for all up to this one's last write
            # From Redis 7.2 on, only a connection's own writes count. A call that is made again has
            # none, and would be confirmed at once, although no replica has what it wrote before.
            pipe.publish(_MARK, "")
            pipe.wait(confirm.replicas, max(1, int(1000 * confirm.timeout_s)))
        raw = pipe.execute(raise_on_error=False)
    answers = iter(raw)
    found = [_after(next(answers) if each.staged else None, next(answers)) for each in calls]
    lacking = _unconfirmed(confirm, *raw[-2:]) if confirm else None
    if lacking is None:
        return found
    # Its replicas may follow another master, to which new connections are made.
    client.connection_pool.disconnect(inuse_connections=False)
    return [
        lacking if each.confirm and not isinstance(answer, Exception) else answer
        for each, answer in zip(calls, found, strict=True)
    ]


def _unconfirmed(confirm: Confirmation, marked: Any, answer: Any) -> Exception | None:
    """The error of calls that want to be confirmed, from what Redis answers to PUBLISH and WAIT."""
    for each in (marked, answer):
        if isinstance(each, Exception):
            return each
    if int(answer) >= confirm.replicas:
        return None
    return RedisUnavailable(
        f"Redis has written, but {int(answer)} of {confirm.replicas} replicas have confirmed it "
        f"within {confirm.timeout_s:g} s (HERMES_QUEUE_REDIS_CONFIRM_REPLICAS): see `role` and the "
        "log of the replicas"
    )


def _after(stored: Any, answer: Any) -> Any:
    """The answer of a script, or the error of storing its value, without which it does nothing."""
    return stored if isinstance(stored, Exception) else answer
