"""Which of our keys each Redis user reaches: docs/security.md says it, a real server must agree."""

from __future__ import annotations

import re

import pytest
import redis
from guarded_redis import ROLES
from ledger_keys import ROOT, is_listed, keys_in_code, rights_of_users

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


TABLE = rights_of_users()


def may(client: redis.Redis, command: tuple[str, ...], key: str) -> bool:
    word, *rest = command
    try:
        client.execute_command(word, key, *rest)
    except redis.exceptions.NoPermissionError:
        return False
    return True


@pytest.mark.parametrize("role", ROLES)
def test_a_user_reaches_of_each_key_what_the_page_says(guarded, role):
    with guarded.client(role) as client:
        found = {
            name: tuple(
                may(client, each, "hq:" + re.sub(r"[{}]", "", name)) for each in COMMANDS[kind]
            )
            for name, (kind, _) in TABLE.items()
        }
    assert found == {name: RIGHTS[rights[role]] for name, (_, rights) in TABLE.items()}


def test_every_key_that_the_code_names_is_in_the_page():
    missing = {k: p.name for k, p in keys_in_code().items() if not is_listed(k.replace("{}", "x"))}
    assert missing == {}


def test_the_code_names_every_key_of_ours_in_the_page():
    named = {re.sub(r"\{[^}]*\}", "{}", name) for name in TABLE}
    celery = {"v1.{}", "_kombu.binding.{}", "unacked_index"}
    put_together = {"sink:{}", "objects:doomed"}  # not spelt out where they are named
    assert named - celery - put_together <= set(keys_in_code())


def test_every_key_of_the_page_is_explained_in_the_architecture():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.split("## What Redis holds")[1].split("\n## ")[0]
    explained = re.findall(r"`([^`]+)`", section)
    heads = {re.split(r"[{<*]", name)[0] for name in explained}
    assert {name for name in TABLE if re.split(r"\{", name)[0] not in heads} == set()
