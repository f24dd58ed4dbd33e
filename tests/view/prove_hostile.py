"""Records that attack their reader, in a real Chromium: text remains text."""

from __future__ import annotations

import pytest
from view_records import HOSTILE_RUN, HOSTILE_TEXTS
from viewed import Viewed

TABS = ("", "patch", "verifier", "tokens", "attempts", "record")
SIGNS = ("␛", "⟨U+202E⟩", "⟨U+200B⟩", "⟨U+2060⟩", "⟨U+FEFF⟩", "⟨U+061C⟩")
MARKUP = [text for text in HOSTILE_TEXTS if text.isascii() and "\x1b" not in text]


@pytest.fixture(scope="module")
def hostile(viewed: Viewed, records):
    viewed.login()
    return next(record for record in records if record.run_id == HOSTILE_RUN)


def check(viewed: Viewed) -> None:
    """No script ran, nothing was asked of anybody else, nothing broke the policy."""
    assert viewed.run("return window.ran === undefined;")
    assert {url.startswith(viewed.pages.address) for url in viewed.requests()} == {True}
    assert viewed.breaches == []
    strange = (
        "main script, main iframe, main img, main object, main embed, main b b, main [onerror]"
    )
    assert viewed.all(strange) == []
    scripts = viewed.run("return [...document.scripts].map((s) => s.src);")
    assert len(scripts) == 1


@pytest.mark.parametrize("tab", TABS)
def test_no_page_of_a_hostile_record_runs_or_asks_anything(viewed, hostile, tab):
    viewed.open(f"/t/{hostile.trajectory_id}", tab=tab or None)
    check(viewed)


def test_the_same_text_is_shown(viewed, hostile):
    viewed.open(f"/t/{hostile.trajectory_id}")
    shown = viewed.run(
        "return [...document.querySelectorAll('article.user')]"
        ".map((m) => m.querySelector('.prose').textContent);"
    )
    assert [text for text in shown if text in MARKUP] == MARKUP
    for text in MARKUP:
        assert text in " ".join(viewed.texts("article.assistant .prose"))
        assert text in viewed.text
    viewed.keep("hostile")


def test_characters_that_deceive_are_seen(viewed, hostile):
    viewed.open(f"/t/{hostile.trajectory_id}")
    marks = " ".join(viewed.texts(".ctl"))
    for sign in SIGNS:
        assert sign in marks
    for character in "\u202e\u200b\u2060\ufeff\u061c\x1b\x07":
        assert character not in viewed.text


def test_lists_with_hostile_names_are_safe(viewed, hostile):
    for path in (f"/run/{HOSTILE_RUN}", "/all", f"/group/{hostile.group_id}", "/review", "/dead"):
        viewed.open(path)
        check(viewed)


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_hostile_text_in_the_address_is_safe(viewed, hostile, text):
    viewed.open("/all", q=text, sort=text, tab=text, of=text)
    check(viewed)
    viewed.open(f"/t/{hostile.trajectory_id}", q=text, tab=text, hide=text, m=text, seq=text)
    check(viewed)


def test_the_browser_itself_refuses_markup_from_text(viewed, hostile):
    viewed.open("/")
    for attempt in ("document.body.innerHTML = '<b>x</b>'", "trustedTypes.createPolicy('x', {})"):
        said = viewed.run(f"try {{ {attempt}; return 'done'; }} catch (e) {{ return e.name; }}")
        assert said == "TypeError"
    viewed.login()
