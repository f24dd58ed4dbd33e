"""Records that attack their reader, in a real Chromium: text remains text."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from view_fixture import HOSTILE_RUNNING
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


def test_findings_in_hostile_words_are_text(viewed, hostile):
    viewed.open(f"/t/{hostile.trajectory_id}")
    listed = viewed.texts(".notice li")
    assert len(listed) == len(HOSTILE_TEXTS)
    for text, line in zip(HOSTILE_TEXTS, listed, strict=True):
        if text in MARKUP:
            assert line.count(text) == 2  # the quote, and the note
    assert [text for text in viewed.texts("article.user .finding") if text in MARKUP] == MARKUP
    check(viewed)


def test_a_review_of_a_hostile_record_is_text(viewed, hostile):
    viewed.open("/review", at=hostile.trajectory_id, q=f"run:{HOSTILE_RUN}")
    viewed.wait("its messages", lambda: viewed.all("article.user"))
    viewed.run("document.querySelector('.menu-line')?.setAttribute('open', '')")
    shown = viewed.texts("article.user .prose")
    assert [text for text in shown if text in MARKUP] == MARKUP
    check(viewed)


def test_a_running_transcript_in_hostile_words_is_text(viewed):
    viewed.open(f"/t/{HOSTILE_RUNNING}")
    viewed.wait("its messages", lambda: len(viewed.all("article.message")) > len(HOSTILE_TEXTS))
    shown = viewed.texts("article .prose")
    assert [text for text in shown if text in MARKUP] == MARKUP
    assert HOSTILE_TEXTS[0] in viewed.texts(".warn")[-1]
    check(viewed)


def test_a_dead_letter_in_hostile_words_is_text(viewed):
    letter = {name: HOSTILE_TEXTS[n] for n, name in enumerate(("reason", "stage", "env"))}
    died = "\n".join(f"{1.7e9 + n} {text}" for n, text in enumerate(HOSTILE_TEXTS))
    log, job = "\n".join(HOSTILE_TEXTS), HOSTILE_TEXTS[-1]
    fields = {**letter, "cause": "poison", "run_id": HOSTILE_RUN, "died": died, "log": log}
    name = viewed.pages.bury({**fields, "job": job, "instance_id": HOSTILE_TEXTS[1]})
    try:
        viewed.open("/dead", letter=name)
        viewed.wait("it", lambda: viewed.all(".letter .lines"))
        log_shown = viewed.run("return document.querySelector('.letter .lines .text').textContent;")
        assert [text for text in MARKUP if text not in log_shown] == []
        assert HOSTILE_TEXTS[1] in viewed.texts("table.rows tbody th")
        assert HOSTILE_TEXTS[0] in viewed.texts(".letter > pre")
        check(viewed)
    finally:
        viewed.pages.exhume(name)


def test_what_failed_in_hostile_words_is_told_as_text(viewed, hostile):
    viewed.open(f"/t/{hostile.trajectory_id}.nothing")
    check(viewed)
    viewed.open("/dead", q=HOSTILE_TEXTS[0], letter=HOSTILE_TEXTS[1])
    check(viewed)
    viewed.open("/group/" + quote(HOSTILE_TEXTS[1], safe=""))
    assert viewed.texts("h1") == [HOSTILE_TEXTS[1]]
    check(viewed)


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
