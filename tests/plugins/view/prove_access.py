"""The viewer's pages for everybody: by keyboard, in both themes, on small screens, quickly."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from view_fixture import HOSTILE_RUNNING, RUNNING
from view_records import HOSTILE_RUN, RUN
from viewed import Keys, Viewed

TOOLS = Path(os.environ.get("VIEW_TOOLS", ".venv/view-tools/node_modules"))
MOST_CODE_BYTES, MOST_REQUESTS = 120_000, 14
TABS = ("", "patch", "verifier", "tokens", "attempts", "record")


@pytest.fixture(autouse=True)
def nothing_breaks_the_policy(viewed: Viewed) -> Iterator[None]:
    viewed.login()
    yield
    assert viewed.breaches == []


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core, which `make test-view` fetches."""
    script = TOOLS / "axe-core/axe.min.js"
    assert script.is_file(), "run `make test-view`, or npm ci with the files of tests/view/npm"
    return script.read_text(encoding="utf-8")


def pages(records) -> dict[str, str]:
    """A name and the address of every kind of page."""
    found = next(r for r in records if r.run_id == RUN and r.report.get("dropped"))
    hostile = next(r for r in records if r.run_id == HOSTILE_RUN)
    trajectory = f"/t/{found.trajectory_id}"
    return {
        "fleet": "/",
        "run": f"/run/{RUN}",
        "groups": f"/run/{RUN}?tab=groups",
        "running": f"/run/{RUN}?tab=running",
        "failed": f"/run/{RUN}?tab=failed",
        "misread": "/all?q=scoer:0",
        "group": f"/group/{found.group_id}",
        **{f"trajectory-{tab or 'messages'}": f"{trajectory}?tab={tab}" for tab in TABS},
        "hostile": f"/t/{hostile.trajectory_id}",
        "dead": "/dead",
        "review": "/review",
        "missing": "/nothing",
        "transcript": f"/t/{RUNNING}",
        "transcript-hostile": f"/t/{HOSTILE_RUNNING}",
        "unknown": "/t/nothing.at.all",
        "empty": "/all?q=run:nothing",
        "letter": "/dead?letter=1-1",
        "passage": f"/t/{hostile.trajectory_id}?m=3&f=3",
    }


PAGES = (
    *("fleet", "run", "groups", "running", "failed", "misread", "group"),
    *(f"trajectory-{tab or 'messages'}" for tab in TABS),
    *("hostile", "dead", "review", "missing"),
    *("transcript", "transcript-hostile", "unknown", "empty", "letter", "passage"),
)


def ready(viewed: Viewed, path: str) -> None:
    """Open a page, with what it loads behind the first answer."""
    viewed.driver.get(viewed.pages.address + path)
    viewed.settle()
    viewed.wait("a heading", lambda: viewed.all("main h1"))
    viewed.wait("all answers", lambda: not viewed.all(".waiting"))


# --- accessible ------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(viewed, records, axe, name, theme):
    viewed.theme(theme)
    ready(viewed, pages(records)[name])
    viewed.keep(f"{name}-{theme}")
    assert viewed.axe(axe) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_dialogs_and_at_the_login(viewed, enqueued, axe, theme):
    viewed.theme(theme)
    viewed.press("?")
    viewed.wait("the help", lambda: viewed.all("dialog[open]"))
    assert viewed.axe(axe) == []
    viewed.login(operate=True)
    viewed.open(f"/run/{RUN}")
    assert viewed.axe(axe) == []
    viewed.click(".actions button.danger")
    viewed.wait("the dialog", lambda: viewed.all("dialog[open] code"))
    viewed.keep(f"dialog-{theme}")
    assert viewed.axe(axe) == []
    viewed.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    viewed.driver.get(viewed.pages.address)
    viewed.wait("the form", lambda: viewed.all("main.login"))
    assert viewed.axe(axe) == []


def test_the_theme_is_chosen_and_stays(viewed):
    viewed.theme("light")
    ground = "return getComputedStyle(document.documentElement).backgroundColor;"
    light = viewed.run(ground)
    theme = ".top button[title^=theme]"
    viewed.click(theme)
    viewed.click(theme)
    assert viewed.run(ground) != light
    viewed.open("/all")
    assert viewed.run(ground) != light
    viewed.click(theme)
    assert viewed.run(ground) == light
    viewed.run("localStorage.clear();")


# --- by keyboard alone -----------------------------------------------------------------------


def test_from_the_first_page_to_a_token_and_back_without_a_mouse(viewed):
    viewed.press("j")
    name = viewed.focused()
    viewed.press(Keys.ENTER)
    viewed.wait("the run", lambda: viewed.texts("h1") == [name])
    viewed.wait("its rows", lambda: viewed.all("table.rows tbody tr"))
    viewed.press("/", "flag:*", Keys.ENTER)
    viewed.wait("filtered", lambda: "q=flag:*" in viewed.address)
    viewed.press(Keys.ESCAPE)
    viewed.wait("few rows", lambda: 0 < len(viewed.all("table.rows tbody tr")) < 20)
    viewed.press("j", "j", "k")
    row = viewed.focused()
    viewed.press(Keys.ENTER)
    viewed.wait("the trajectory", lambda: row in viewed.texts("h1")[0])
    viewed.wait("its messages", lambda: viewed.all("article.message"))
    for key, tab in (
        ("2", "patch"),
        ("3", "verifier"),
        ("5", "attempts"),
        ("6", "record"),
        ("4", "tokens"),
    ):
        viewed.press(key)
        viewed.wait(tab, lambda tab=tab: f"tab={tab}" in viewed.address)
    viewed.wait("the strip", lambda: viewed.all(".strip-block"))
    viewed.press(Keys.ARROW_RIGHT)
    assert viewed.texts(".about")[0].startswith("#0 id")
    viewed.press("g")
    viewed.wait("the group", lambda: viewed.address.startswith("/group/"))
    viewed.wait("its rows", lambda: viewed.all("table.rows tbody tr"))
    viewed.press("u")
    viewed.wait("the run again", lambda: viewed.texts("h1") == [name])
    viewed.press("u")
    viewed.wait("the first page", lambda: viewed.address == "/")


def test_messages_and_errors_are_walked_by_keys(viewed, records):
    viewed.open(pages(records)["trajectory-messages"].partition("?")[0])
    viewed.wait("messages", lambda: viewed.all("article.message"))
    viewed.press("j", "j")
    assert "user" in viewed.focused()
    viewed.press("e")
    assert "error" in viewed.focused()
    viewed.press(Keys.ENTER)
    viewed.wait("folded", lambda: viewed.all("article.bad button[aria-expanded=false]"))
    viewed.press("r")
    viewed.wait("the review", lambda: viewed.address.startswith("/review"))


def test_all_that_acts_or_leads_on_is_reached_by_tab_and_can_be_seen(viewed, records):
    """Every page: Tab goes through all links, buttons and fields, and shows where it is."""
    everything = """return [...document.querySelectorAll(
        'a[href], button, input, select, summary, textarea')].filter((each) =>
        each.checkVisibility({ contentVisibilityAuto: false, visibilityProperty: true })
        && !each.disabled && each.tabIndex >= 0 && !each.closest('[hidden], .turn, .strip')
        && !each.classList.contains('skip')).length;"""
    step = """const at = document.activeElement; if (at === document.body) return null;
      window.visited ||= new Set(); const fresh = !window.visited.has(at); window.visited.add(at);
      const seen = at.matches(':focus-visible') && getComputedStyle(at).outlineStyle !== 'none';
      const counts = at.matches('a[href], button, input, select, summary, textarea')
        && !at.closest('.turn, .strip') && !at.classList.contains('skip');
      return [fresh, seen, counts];"""
    for name in ("fleet", "groups", "group", "review", "dead", "empty", "unknown", "misread"):
        ready(viewed, pages(records)[name])
        viewed.run("document.querySelector('.skip').focus(); window.visited = new Set();")
        wanted, reached = viewed.run(everything), 0
        for _ in range(600):
            viewed.press(Keys.TAB)
            found = viewed.run(step)
            if found is None or not found[0] or reached == wanted:
                break
            _, seen, counts = found
            assert seen, (name, viewed.run("return document.activeElement.outerHTML;")[:200])
            reached += counts
        assert reached == wanted, name


def test_review_dead_letters_and_comparison_without_a_mouse(viewed, records):
    viewed.press("j", "j")
    viewed.open("/review")
    viewed.wait("messages", lambda: viewed.all("article.message"))
    first = viewed.address
    viewed.press("]")
    viewed.wait("the next", lambda: viewed.address != first)
    viewed.press("[")
    viewed.wait("the first again", lambda: "1 of" in viewed.texts(".title")[0])
    viewed.press("g")
    viewed.wait("the comparison", lambda: viewed.all("table.compare"))
    viewed.open("/dead")
    viewed.press("j", Keys.ENTER)
    viewed.wait("the letter", lambda: viewed.all(".letter .command"))
    viewed.press("c")
    said = "[role=status].toast"
    viewed.wait("it is copied", lambda: "hermes-queue dead requeue" in viewed.texts(said)[0])
    viewed.press("u")
    viewed.wait("the first page", lambda: viewed.address == "/")
    viewed.open(f"/t/{RUNNING}")
    viewed.wait("its messages", lambda: viewed.all("article.message"))
    viewed.press("j")
    assert "user" in viewed.focused()
    viewed.press("p")
    viewed.wait("it is held", lambda: "held" in viewed.texts(".pulse")[0])
    viewed.press("p", "u")
    viewed.wait("its run", lambda: viewed.address == f"/run/{RUN}")


def test_help_names_every_key_and_closes(viewed):
    viewed.press("?")
    viewed.wait("the help", lambda: viewed.all("dialog[open]"))
    assert {"?", "/", "u", "g", "o", "e", "y", "c", "p", "r"} <= set(viewed.texts("dialog kbd"))
    assert viewed.focused() == "Close"
    viewed.press(Keys.ESCAPE)
    viewed.wait("closed", lambda: not viewed.all("dialog"))


def test_keys_in_a_field_are_text(viewed):
    viewed.open("/all")
    viewed.press("/")
    viewed.press("jug?p2")
    assert viewed.run("return document.activeElement.value;") == "jug?p2"
    assert viewed.address == "/all"


def test_a_new_page_begins_at_its_heading(viewed):
    viewed.click(".top nav a[href='/all']")
    viewed.wait("the page", lambda: viewed.address == "/all")
    focus = "return document.activeElement.tagName;"
    viewed.wait("the focus", lambda: viewed.run(focus) == "H1")


def test_links_are_copied_with_all_that_is_shown(viewed):
    viewed.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {
            "origin": viewed.pages.address,
            "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"],
        },
    )
    viewed.open("/all", q="score:1")
    viewed.press("y")
    wanted = viewed.driver.current_url
    viewed.wait("it is said", lambda: f"Copied: {wanted}" in viewed.texts("[role=status].toast"))


# --- small screens ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_wider_than_a_narrow_screen(viewed, records, name):
    viewed.size(380, 800)
    try:
        ready(viewed, pages(records)[name])
        viewed.keep(f"{name}-narrow")
        assert viewed.run("return document.documentElement.scrollWidth;") <= 380
    finally:
        viewed.size(1280, 900)


def test_at_200_percent_everything_can_be_reached(viewed, records):
    viewed.size(640, 450, 2.0)
    try:
        for path in pages(records).values():
            ready(viewed, path)
            assert viewed.run("return document.documentElement.scrollWidth;") <= 640, path
    finally:
        viewed.size(1280, 900)


# --- cost ------------------------------------------------------------------------------------


def test_the_first_page_is_small(viewed):
    viewed.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    viewed.driver.get(viewed.pages.address)
    viewed.wait("live numbers", lambda: "152/200" in viewed.text and viewed.all("table.rows"))
    script = """return performance.getEntries()
      .filter((each) => ["navigation", "resource"].includes(each.entryType))
      .map((each) => [each.name, each.encodedBodySize, each.decodedBodySize]);"""
    asked = [(urllib.parse.urlsplit(name).path, *sizes) for name, *sizes in viewed.run(script)]
    asked.append(("/api/events", 0, 0)) if not any("events" in a[0] for a in asked) else None
    code = [each for each in asked if not each[0].startswith("/api/")]
    packed, unpacked = sum(each[1] for each in code), sum(each[2] for each in code)
    print(f"\nfirst page: {len(asked)} requests, code {packed} bytes ({unpacked} unpacked)")
    assert len(asked) <= MOST_REQUESTS, [name for name, *_ in asked]
    assert unpacked <= MOST_CODE_BYTES
    viewed.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": False})


def test_nothing_but_the_choices_of_the_page_is_kept(viewed, records):
    for path in list(pages(records).values())[:8]:
        ready(viewed, path)
    script = "return [Object.keys(localStorage), Object.keys(sessionStorage), document.cookie];"
    assert viewed.run(script) == [[], [], ""]
    names = "const done = arguments[0]; indexedDB.databases().then((all) => done(all.length));"
    assert viewed.driver.execute_async_script(names) == 0
