"""Buttons that act, in a real Chromium: which are there, what they ask for, and what they send.

What they do is tried on a real Redis in `test_actions.py`; here the server only says that it did.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import Response
from view_fixture import ViewedPages
from view_records import RUN
from viewed import Viewed

from hermes_plugins.view.app import ApiCall, Route


class Agreeing:
    """Answers to every action as if it was done."""

    def __init__(self) -> None:
        self.acted: list[tuple[str, dict[str, Any]]] = []

    def act(self, call: ApiCall) -> Response:
        name, body = call.path["name"], dict(call.body)
        trial = bool(body.pop("dry_run", False))
        if not trial:
            self.acted.append((name, body))
        command = f"hermes-queue {name.replace('_', ' ')} {RUN}"
        return call.json({"met": 2, "done": 0 if trial else 2, "command": command})


@pytest.fixture(scope="module")
def agreeing() -> Agreeing:
    return Agreeing()


@pytest.fixture(scope="module")
def viewed(written, agreeing, redis_binary, tmp_path_factory) -> Iterator[Viewed]:
    """A browser at a viewer that agrees to everything."""
    directory = tmp_path_factory.mktemp("agreeing")
    route = Route("POST", "/api/actions/{name}", agreeing.act, role="operate")
    pages = ViewedPages(written[0], directory, redis_binary, routes=[route])
    try:
        browser = Viewed(pages, directory / "profile")
        try:
            yield browser
        finally:
            assert browser.breaches == []
            browser.close()
    finally:
        pages.close()


def test_buttons_are_those_that_the_state_allows(viewed):
    viewed.login(operate=True)
    viewed.open("/")
    viewed.wait("workers", lambda: viewed.texts("[aria-labelledby=workers] tbody tr"))
    buttons = [
        [text for text in re.findall(r"Pause|Resume|Size…|Drain…", row)]
        for row in viewed.texts("[aria-labelledby=workers] tbody tr")
    ]
    assert buttons == [["Pause", "Size…", "Drain…"], ["Resume", "Size…", "Drain…"]]
    viewed.open(f"/run/{RUN}")
    assert viewed.texts(".title .actions button") == [
        "Pause",
        "Retry failed…",
        "Budget…",
        "Cancel…",
    ]


def press_button(viewed: Viewed, title: str) -> None:
    script = """[...document.querySelectorAll('.actions button')]
      .find((b) => b.textContent === arguments[0]).click();"""
    viewed.run(script, title)
    viewed.wait("the dialog", lambda: viewed.all("dialog[open]"))


@pytest.mark.parametrize(
    ("path", "button", "given", "name", "wanted"),
    [
        ("/", "Size…", ["12", "6"], "worker_size", {"concurrency": "12", "slots": "6"}),
        ("/", "Drain…", [], "worker_drain", {"worker": "trainer-1"}),
        (f"/run/{RUN}", "Budget…", ["20", "", "none"], "run_budget", {"budget_usd": "20"}),
        (f"/run/{RUN}", "Retry failed…", ["sandbox"], "run_retry", {"cause": "sandbox"}),
        (f"/run/{RUN}", "Retry failed…", [], "run_retry", {"run": RUN}),
    ],
)
def test_an_action_asks_for_what_it_needs(viewed, agreeing, path, button, given, name, wanted):
    viewed.login(operate=True)
    viewed.open(path)
    viewed.wait("buttons", lambda: button in viewed.texts(".actions button"))
    press_button(viewed, button)
    final = viewed.all("dialog[open] button")[-1]
    if button in ("Size…", "Budget…"):
        assert not final.is_enabled()
    for field, text in zip(viewed.all("dialog[open] label > *"), given, strict=False):
        if text:
            field.send_keys(text)
    viewed.wait("it may be done", final.is_enabled)
    viewed.all("dialog[open] input")[-1].send_keys("as agreed")
    acted = agreeing.acted
    before = len(acted)
    final.click()
    viewed.wait("it is done", lambda: len(acted) > before)
    done, body = acted.pop()
    assert (done, body["reason"]) == (name, "as agreed")
    assert wanted.items() <= body.items()
    if "none" in given:
        assert body["budget_wall_s"] == "none"
        assert "budget_tokens" not in body


def test_one_letter_is_requeued_or_purged_alone(viewed, agreeing):
    viewed.login(operate=True)
    name = viewed.pages.bury({"cause": "poison", "reason": "killed it", "job": "{}"})
    try:
        viewed.open("/dead", letter=name)
        viewed.wait("the letter", lambda: viewed.all(".letter .actions"))
        assert viewed.texts(".letter .actions button") == ["Requeue", "Purge…"]
        viewed.click(".letter .actions button")
        viewed.says("Meets 2 dead letters.")
        viewed.click("dialog[open] button.main")
        viewed.wait("it is done", lambda: agreeing.acted)
        assert agreeing.acted.pop()[1]["ids"] == [name]
    finally:
        viewed.pages.exhume(name)
