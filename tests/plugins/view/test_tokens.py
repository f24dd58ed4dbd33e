"""Tokens of the viewer, sessions and the count of wrong ones."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hermes_plugins.view.answers import Refusal
from hermes_plugins.view.tokens import SESSION_S, WRONG_MAX, Attempts, Keys, ViewSession, kept_token
from hermes_queue.errors import ConfigurationError

TOKENS = {"view": "v" * 43, "operate": "o" * 43}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_cookie_says_who_its_bearer_is() -> None:
    keys = Keys(TOKENS)  # type: ignore[arg-type]
    for session in (ViewSession("view", "Ada"), ViewSession("operate", "é ü"), ViewSession("view")):
        assert keys.open(keys.seal(session)) == session


def test_a_cookie_ends_with_its_time_and_with_its_token() -> None:
    clock = Clock()
    keys = Keys(TOKENS, clock=clock)  # type: ignore[arg-type]
    cookie = keys.seal(ViewSession("view", "Ada"))
    assert Keys({"view": "w" * 43}, clock=clock).open(cookie) == ViewSession()
    clock.now += SESSION_S + 1
    assert keys.open(cookie) == ViewSession()


def test_a_cookie_of_one_role_is_none_of_the_other() -> None:
    keys = Keys(TOKENS)  # type: ignore[arg-type]
    said, _, signature = keys.seal(ViewSession("view")).partition(".")
    other, _, _ = keys.seal(ViewSession("view", "Eve")).partition(".")
    for forged in (f"{other}.{signature}", f"{said}.", said, ".", f".{signature}", "x" * 5000):
        assert keys.open(forged) == ViewSession()
    seen = Keys({"view": "s" * 43}).seal(ViewSession("view"))
    assert Keys({"operate": "s" * 43}).open(seen) == ViewSession()


def test_a_token_opens_its_role() -> None:
    keys = Keys(TOKENS)  # type: ignore[arg-type]
    assert [keys.of_token(TOKENS[role], "a") for role in ("view", "operate")] == ["view", "operate"]
    for wrong in ("", "v", "v" * 42, "v" * 44, "é" * 43, "\ud800"):
        with pytest.raises(Refusal, match="not valid"):
            keys.of_token(wrong, "a")


def test_wrong_tokens_are_counted_for_each_address_and_for_a_minute() -> None:
    clock = Clock()
    attempts = Attempts(clock)
    for _ in range(WRONG_MAX):
        attempts.check("a")
        attempts.count("a")
    with pytest.raises(Refusal, match="too many"):
        attempts.check("a")
    attempts.check("b")
    clock.now += 61
    attempts.check("a")


def test_addresses_of_one_network_are_counted_together() -> None:
    attempts = Attempts(Clock())
    for n in range(WRONG_MAX):
        attempts.count(f"2001:db8::{n:x}:1")
        attempts.count(f"::ffff:10.0.0.{n}")
    with pytest.raises(Refusal, match="too many"):
        attempts.check("2001:db8::ffff")
    attempts.check("2001:db8:0:1::1")
    attempts.check("::ffff:10.0.0.1")


def test_the_count_holds_few_addresses() -> None:
    attempts = Attempts(Clock())
    for n in range(5000):
        attempts.count(str(n))
    assert len(attempts._wrong) == 1024


def test_a_token_is_made_once_and_read_by_its_owner_alone(tmp_path: Path) -> None:
    first = kept_token(tmp_path / "view", "view.token")
    assert len(first) == 43
    assert kept_token(tmp_path / "view", "view.token") == first
    assert kept_token(tmp_path / "view", "operate.token") != first
    assert stat.S_IMODE((tmp_path / "view").stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "view").iterdir()} == {0o600}
    assert len(list((tmp_path / "view").iterdir())) == 2  # no drafts


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigurationError, match="can be read by others"):
        kept_token(tmp_path, "view.token")


@pytest.mark.parametrize("content", ["", "short", "x" * 300, "\x00" * 43, "é" * 30])
def test_a_damaged_token_file_is_refused(tmp_path: Path, content: str) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "view.token"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="16 to 256"):
        kept_token(tmp_path, "view.token")


def test_a_token_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    kept_token(tmp_path / "mine", "view.token")
    (tmp_path / "view").mkdir(mode=0o700)
    (tmp_path / "view" / "view.token").symlink_to(tmp_path / "mine" / "view.token")
    with pytest.raises(ConfigurationError, match="delete it"):
        kept_token(tmp_path / "view", "view.token")
