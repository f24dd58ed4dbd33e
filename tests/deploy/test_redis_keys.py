"""Which keys each Redis user reaches: the table of keys says it, a real server must agree."""

from __future__ import annotations

import re

import pytest
import redis
from guarded_redis import ROLES
from ledger_keys import ROOT, is_listed, keys_in_code

from hermes_queue.keyspace.keys import keys

pytestmark = pytest.mark.xdist_group("sources")

COMMANDS = {
    "string": (("GET",), ("SET", "x")),
    "list": (("LRANGE", "0", "-1"), ("LPUSH", "x")),
    "set": (("SMEMBERS",), ("SADD", "x")),
    "zset": (("ZRANGE", "0", "-1"), ("ZADD", "1", "x")),
    "hash": (("HGETALL",), ("HSET", "x", "1")),
    "stream": (("XRANGE", "-", "+"), ("XADD", "*", "x", "1")),
}
"""How each type is read and written: the command, and what follows the key."""
RIGHTS = {"rw": (True, True), "r": (True, False), "w": (False, True), "-": (False, False)}
EVERYTHING = {"worker": "rw", "operator": "rw", "viewer": "r"}


def may(client: redis.Redis, command: tuple[str, ...], key: str) -> bool:
    word, *rest = command
    try:
        client.execute_command(word, key, *rest)
    except redis.exceptions.NoPermissionError:
        return False
    return True


@pytest.mark.parametrize("role", ROLES)
def test_a_user_reaches_of_each_key_what_its_row_says(guarded, role):
    with guarded.client(role) as client:
        found = {
            key.pattern: tuple(
                may(client, each, "hq:" + re.sub(r"[{}]", "", key.pattern))
                for each in COMMANDS[key.type]
            )
            for key in keys()
        }
    assert found == {key.pattern: RIGHTS[(EVERYTHING | key.rights)[role]] for key in keys()}


def test_every_pattern_of_the_users_is_for_a_key_with_a_row():
    users = (ROOT / "deploy/redis/users.acl").read_text(encoding="utf-8")
    patterns = set(re.findall(r"~hq:(\S+[^\s)])", re.sub(r"(?m)^#.*", "", users)))
    names = [re.sub(r"[{}]", "", key.pattern) for key in keys()]
    fits = {p: re.compile(re.escape(p).replace(r"\*", ".*")) for p in patterns}
    assert {p for p, fit in fits.items() if not any(map(fit.fullmatch, names))} == set()


def test_every_key_that_the_code_names_has_a_row():
    missing = {k: p for k, p in keys_in_code().items() if not is_listed(k.replace("{}", "x"))}
    assert missing == {}


def test_the_code_names_every_key_of_ours_that_has_a_row():
    ours = {re.sub(r"\{[^}]*\}", "{}", key.pattern) for key in keys() if key.owner != "broker"}
    endpoint = "lane:{}:endpoint:{}"
    put_together = {"sink:{}", endpoint, f"{endpoint}:outcomes"}  # not spelt out where it is named
    assert ours - put_together <= set(keys_in_code())
