"""One trajectory in a real Chromium: messages, patch, verifier, tokens, attempts, record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from view_fixture import HOSTILE_RUNNING, LONG, RUNNING
from view_records import HOSTILE_RUN, RUN, TOKENS, TURN_TOKENS, long_outputs
from viewed import Keys, Viewed

from hermes_queue.models import ScoredTrajectory

Records = list[ScoredTrajectory]
MOST_NODES = 1000
STEPS = (0.02, 0.1, 0.5, 1, 2, 4, 7)
RANGES = """
const found = [];
for (const [name, highlight] of CSS.highlights) for (const range of highlight) {
  const block = Number(range.startContainer.parentElement.dataset.block);
  found.push([name, block, range.startContainer.data.slice(range.startOffset, range.endOffset)]);
}
return found.sort((a, b) => a[1] - b[1]);
"""


@pytest.fixture(autouse=True)
def nothing_breaks_the_policy(viewed: Viewed) -> Iterator[None]:
    viewed.login()
    yield
    assert viewed.breaches == []


def find(records: Records, **wanted: Any) -> ScoredTrajectory:
    """The first record of the coding run with these fields, which is long enough to be read."""
    return next(
        record
        for record in records
        if record.run_id == wanted.get("run_id", RUN)
        and (len(record.messages) > 20 or "run_id" in wanted)
        and all(getattr(record, name) == value for name, value in wanted.items())
    )


def plain(text: str) -> str:
    """A text as it is shown: colours of terminals are not text."""
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def test_a_running_trajectory_grows_while_one_looks(viewed):
    running = viewed.pages.running
    viewed.open(f"/t/{RUNNING}")
    viewed.says("The bug: `parse` returns None.")
    viewed.says("I look at it. <b>bold</b>")
    viewed.says("trainer-1")
    running.texts += ["[exit code 0]", "It is fixed."]
    viewed.says("It is fixed.")
    assert len(viewed.all("article.message")) == 4


def test_a_long_message_of_what_runs_is_shown_whole_on_demand(viewed):
    viewed.open(f"/t/{HOSTILE_RUNNING}")
    viewed.wait("the button", lambda: viewed.all("article .tools button"))
    last = viewed.texts("article .prose")[-1]
    assert len(last) < len(LONG.strip())
    viewed.click("article .tools button")
    viewed.wait("all of it", lambda: viewed.texts("article .prose")[-1] == LONG.strip())


def test_what_failed_says_why_at_its_head(viewed, records):
    record = next(r for r in records if r.run_id == RUN and r.status == "failed")
    viewed.open(f"/t/{record.trajectory_id}")
    assert viewed.texts("p.problem") == ["SandboxError gone attempts"]
    viewed.click("p.problem a")
    viewed.wait("the attempts", lambda: "tab=attempts" in viewed.address)


def test_every_message_is_in_the_document_as_it_is(viewed, records):
    record = find(records, sample_index=0)
    viewed.open(f"/t/{record.trajectory_id}")
    assert len(viewed.all("article.message")) == len(record.messages)
    shown = viewed.run(
        "return [...document.querySelectorAll('article.message')]"
        ".map((m) => [...m.querySelectorAll("
        "'.prose, pre.text')].map((e) => e.textContent).join(''));"
    )
    for message, text in zip(record.messages, shown, strict=True):
        assert plain(message.content or "") in text
        assert (message.reasoning or "") in text
    red = viewed.texts(".ansi-fg-1")
    assert "FAILED" in red
    viewed.keep("trajectory")


def test_outputs_fold_by_the_chip_and_errors_stay_open(viewed, records):
    record = find(records, sample_index=0)
    viewed.open(f"/t/{record.trajectory_id}")
    viewed.press("o")
    viewed.wait("the address", lambda: "hide=outputs" in viewed.address)
    folded = "article.tool:not(.bad) h3 button[aria-expanded=false]"
    viewed.wait("folded", lambda: viewed.all(folded))
    assert not viewed.all("article.tool:not(.bad) h3 button[aria-expanded=true]")
    assert viewed.all("article.tool.bad h3 button[aria-expanded=true]")
    hidden = viewed.run("return document.querySelector('article.tool:not(.bad) [hidden]').hidden;")
    assert hidden == "until-found"


def test_a_long_output_shows_its_ends_and_a_find_in_the_page_opens_the_rest(viewed, records):
    record = find(records, sample_index=0)
    viewed.open(f"/t/{record.trajectory_id}")
    more = viewed.all("button.more")
    assert more
    assert more[0].get_attribute("aria-expanded") == "false"
    viewed.run("document.querySelector('.body [hidden]').dispatchEvent(new Event('beforematch'));")
    viewed.wait("it is open", lambda: viewed.all("button.more[aria-expanded=true]"))


def test_the_browsers_own_find_opens_a_fold(viewed, records):
    """A text fragment is looked for as a find in the page is, and opens what hides it."""
    record = next(r for r in records if r.run_id == RUN and long_outputs(r))
    viewed.open(f"/t/{record.trajectory_id}")
    place = f"#m{long_outputs(record)[0]}"
    fold = f"document.querySelector('{place} .body [hidden]')"
    assert viewed.run(f"return {fold}.hidden;") == "until-found"
    viewed.driver.get(f"{viewed.driver.current_url}#:~:text=src/module_46.py%3A46")
    viewed.wait("it is open", lambda: viewed.all(f"{place} button.more[aria-expanded=true]"))


def test_a_finding_leads_to_its_passage_inside_a_fold(viewed, records):
    record = next(r for r in records if r.run_id == RUN and long_outputs(r))
    viewed.open(f"/t/{record.trajectory_id}")
    [found, broken] = viewed.texts(".notice li")
    assert "the quote is not there" in broken
    assert "the quote is not there" not in found
    place = long_outputs(record)[0]
    viewed.click(f".notice a[href*='m={place}']")
    viewed.wait("the address", lambda: f"m={place}&f=0" in viewed.address)
    passage = f"return document.querySelector('#m{place} .finding').getBoundingClientRect().top;"
    viewed.wait("it is seen", lambda: 0 < viewed.run(passage) < 900)
    assert viewed.texts(f"#m{place} .finding") == ["src/module_45.py:45: value = 2025"]


def test_an_address_leads_to_one_message(viewed, records):
    record = find(records, sample_index=0)
    viewed.open(f"/t/{record.trajectory_id}", m=14)
    viewed.wait("its mark", lambda: viewed.all("#m14.marked"))
    top = viewed.run("return document.getElementById('m14').getBoundingClientRect().top;")
    assert 0 <= top < 300


def test_a_context_rewrite_stands_where_it_happened(viewed, records):
    record = find(records, sample_index=0)
    viewed.open(f"/t/{record.trajectory_id}")
    assert viewed.texts(".rule") == ["context_rewrite · window · truncate_tools"]
    after = viewed.run(
        "return document.querySelector('.rule').parentElement.getAttribute('aria-label');"
    )
    assert after == "turn 4"


def test_a_text_that_was_cut_is_shown_whole_on_demand(viewed, records):
    record = find(records, run_id=HOSTILE_RUN)
    viewed.open(f"/t/{record.trajectory_id}")
    last = f"#m{len(record.messages) - 1}"
    assert len(viewed.texts(f"{last} pre.text")[0]) < 10_000
    viewed.click(f"{last} .tools button")
    whole = len(record.messages[-1].content or "")
    script = f"return document.querySelector('{last} pre.text').textContent.length;"
    viewed.wait("all of it", lambda: viewed.run(script) == whole)


def test_all_texts_can_be_had_whole(viewed, records):
    record = find(records, run_id=HOSTILE_RUN)
    viewed.open(f"/t/{record.trajectory_id}")
    assert viewed.texts(".chips button") == ["all texts, whole"]
    viewed.click(".chips button")
    viewed.wait("no text is cut", lambda: not viewed.all(".chips button"))
    assert len(viewed.all("article.message")) == len(record.messages)
    last = f"#m{len(record.messages) - 1}"
    long = f"return document.querySelector('{last} pre.text').textContent.length;"
    assert viewed.run(long) == len(record.messages[-1].content or "")
    short = find(records, sample_index=0)
    viewed.open(f"/t/{short.trajectory_id}")
    assert not viewed.all(".chips button")


def test_the_list_one_came_from_is_walked_with_the_tab(viewed, records):
    q = f"run:{RUN} score:0"
    ids = [row["id"] for row in viewed.api("/api/trajectories", q=q)["rows"]]
    viewed.open(f"/t/{ids[0]}", q=q, tab="verifier")
    assert f"1 of {len(ids)}" in viewed.texts(".neighbours")[0]
    viewed.press("]")
    viewed.wait("the next", lambda: ids[1] in viewed.address)
    assert "tab=verifier" in viewed.address
    viewed.says(f"2 of {len(ids)}")
    viewed.press("[")
    viewed.wait("the one before", lambda: ids[0] in viewed.address)
    viewed.says(f"1 of {len(ids)}")
    viewed.press("u")
    viewed.wait(
        "the list",
        lambda: (
            viewed.address == f"/run/{RUN}?q=score:0&sort="
            or viewed.address == f"/run/{RUN}?q=score:0"
        ),
    )


def test_the_patch_is_shown_by_file_with_test_files_marked(viewed, records):
    record = next(r for r in records if r.run_id == RUN and r.report.get("dropped"))
    viewed.open(f"/t/{record.trajectory_id}", tab="patch")
    viewed.wait("the patch", lambda: viewed.all("table.diff"))
    lines = record.report["patch"].splitlines()
    added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert (
        viewed.run(
            "return [...document.querySelectorAll('.diff .added pre')].map((e) => e.textContent);"
        )
        == added
    )
    assert viewed.texts(".file summary b") == ["src/parse.py", "tests/test_parse.py"]
    assert viewed.texts(".file summary .flag") == ["! test file"]
    viewed.keep("patch")


def test_the_verifier_names_tests_and_dropped_paths(viewed, records):
    record = next(r for r in records if r.run_id == RUN and r.report.get("dropped"))
    viewed.open(f"/t/{record.trajectory_id}", tab="verifier")
    viewed.wait("the report", lambda: viewed.all(".verifier"))
    status = record.report["tests_status"]
    names = [*status["FAIL_TO_PASS"]["failing"], *status["PASS_TO_PASS"]["passed"]]
    assert viewed.texts(".tests code") == names
    assert viewed.texts(".notice li") == record.report["dropped"]
    assert viewed.texts(".reason") == [record.report["reason"]]


def test_earlier_attempts_say_why_they_failed(viewed, records):
    record = find(records, sample_index=2)
    viewed.open(f"/t/{record.trajectory_id}", tab="attempts")
    viewed.says("sandbox at setup")
    viewed.says("the slot's host went away")
    assert viewed.texts("table.rows tbody th") == ["context_rewrite"]


def test_the_record_can_be_had_whole(viewed, records):
    record = find(records, sample_index=0)
    viewed.open(f"/t/{record.trajectory_id}", tab="record")
    link = viewed.one("a[download]").get_attribute("href")
    said = viewed.pages.server.get(link.removeprefix(viewed.pages.address))
    assert said.headers["content-disposition"].startswith("attachment")
    assert json.loads(said.body)["trajectory_id"] == record.trajectory_id


# --- tokens ----------------------------------------------------------------------------------


def signed(logprob: float) -> str:
    """A log-probability as the pages write it."""
    return f"{logprob:.3f}".replace("-", "\u2212")


def name_of(logprob: float, trained: int) -> str:
    """The colour that a token must have."""
    if not trained:
        return "tok-context"
    return f"tok-{next((n for n, bound in enumerate(STEPS) if -logprob <= bound), len(STEPS))}"


def test_every_token_has_the_colour_of_its_logprob(viewed, records):
    record = find(records, sample_index=0)
    [sequence] = record.sequences or ()
    viewed.open(f"/t/{record.trajectory_id}", tab="tokens")
    viewed.wait("colours", lambda: viewed.run("return CSS.highlights.size;"))
    ranges = viewed.run(RANGES)
    shown: dict[str, list[str]] = {}
    for name, _, text in ranges:
        shown.setdefault(name, []).extend(text.split())
    wanted: dict[str, list[str]] = {}
    for number, trained, logprob in zip(
        sequence.ids, sequence.loss_mask, sequence.logprobs, strict=True
    ):
        wanted.setdefault(name_of(logprob, trained), []).append(str(number))
    assert {name: sorted(each) for name, each in shown.items()} == {
        name: sorted(each) for name, each in wanted.items()
    }
    assert viewed.texts(".strip-block h2")[0].startswith("turn 1")
    viewed.keep("tokens")


def test_arrows_walk_the_tokens_and_a_button_finds_the_least_likely(viewed, records):
    record = find(records, sample_index=0)
    [sequence] = record.sequences or ()
    viewed.open(f"/t/{record.trajectory_id}", tab="tokens")
    viewed.wait("the strip", lambda: viewed.all(".strip-block"))
    viewed.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert viewed.texts(".about")[0].startswith(f"#1 id {sequence.ids[1]}")
    viewed.click(".tools button")
    least = min(sequence.logprobs)
    at = list(sequence.logprobs).index(least)
    assert viewed.texts(".about")[0].startswith(f"#{at} id {sequence.ids[at]} logp {signed(least)}")
    box = viewed.run(
        "const [r] = CSS.highlights.get('tok-current'); const b = r.getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2, r.toString()];"
    )
    assert box[2] == str(sequence.ids[at])


def test_pointing_at_a_token_tells_of_it(viewed, records):
    record = find(records, sample_index=0)
    [sequence] = record.sequences or ()
    viewed.open(f"/t/{record.trajectory_id}", tab="tokens")
    viewed.wait("the strip", lambda: viewed.all(".strip-block"))
    x, y = viewed.run(
        "const text = document.querySelector('[data-block]').firstChild; const r = new Range();"
        "const at = text.data.split(' ', 30).join(' ').length + 2;"
        "r.setStart(text, at); r.setEnd(text, at + 1);"
        "const b = r.getBoundingClientRect(); return [b.left + 2, b.top + b.height / 2];"
    )
    move = {"type": "mouseMoved", "x": x, "y": y}
    viewed.driver.execute_cdp_cmd("Input.dispatchMouseEvent", move)
    viewed.wait("it", lambda: viewed.texts(".about")[0].startswith(f"#30 id {sequence.ids[30]}"))


def test_the_policy_of_each_turn_has_a_colour(viewed, records):
    record = find(records, sample_index=0)
    viewed.open(f"/t/{record.trajectory_id}", tab="tokens", colour="policy")
    viewed.wait("colours", lambda: viewed.run("return CSS.highlights.size;"))
    names = {name for name, _, _ in viewed.run(RANGES)}
    assert names == {"tok-context", "tok-p0", "tok-p1"}


def test_32000_tokens_take_few_nodes(viewed, records):
    record = find(records, run_id="tokens")
    viewed.open(f"/t/{record.trajectory_id}", tab="tokens")
    viewed.wait("colours", lambda: viewed.run("return CSS.highlights.size;"))
    assert len(viewed.all(".strip-block")) == -(-TOKENS // TURN_TOKENS)
    ids = viewed.run(
        "return [...document.querySelectorAll('[data-block]')]"
        ".map((e) => e.textContent).join('').split(' ').length - 1;"
    )
    assert ids == TOKENS
    nodes = viewed.run(
        "let n = 0; const walk = document.createTreeWalker(document.body);"
        "while (walk.nextNode()) n++; return n;"
    )
    assert nodes <= MOST_NODES
    print(f"\n{TOKENS} tokens: {nodes} nodes, texts included")


def test_a_browser_without_highlights_shows_the_same_colours_with_spans(viewed, records):
    record = find(records, sample_index=0)
    driver = viewed.driver
    hide = {"source": "delete window.Highlight;"}
    key = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", hide)["identifier"]
    try:
        viewed.open(f"/t/{record.trajectory_id}", tab="tokens")
        viewed.wait("spans", lambda: viewed.all("[data-block] span"))
        [sequence] = record.sequences or ()
        for name in ("tok-2", "tok-context"):
            shown = " ".join(viewed.texts(f"[data-block] .{name}")).split()
            wanted = [
                str(number)
                for number, trained, logprob in zip(
                    sequence.ids, sequence.loss_mask, sequence.logprobs, strict=True
                )
                if name_of(logprob, trained) == name
            ]
            assert shown == wanted
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": key})


def test_a_trajectory_that_does_not_exist_is_told(viewed):
    viewed.open("/t/nothing.of.that.name")
    viewed.wait("the error", lambda: viewed.texts("[role=alert]"))
