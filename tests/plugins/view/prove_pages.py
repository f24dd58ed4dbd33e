"""The viewer's pages in a real Chromium: what they show is what the API says.

`make test-view`. SCREENSHOTS=directory keeps the pages as pictures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from view_records import MANY, MANY_RUN, RUN, SAMPLES
from view_server import VIEW_TOKEN
from viewed import Keys, Viewed

from hermes_queue.models import ScoredTrajectory

Records = list[ScoredTrajectory]


@pytest.fixture(autouse=True)
def nothing_breaks_the_policy(viewed: Viewed) -> Iterator[None]:
    viewed.login()
    yield
    assert viewed.breaches == []


def coding(records: Records, **wanted: Any) -> ScoredTrajectory:
    """The first coding record with these fields."""
    return next(
        record
        for record in records
        if record.run_id == RUN
        and record.status == wanted.get("status", "completed")
        and all(getattr(record, name) == value for name, value in wanted.items())
    )


def rows(viewed: Viewed) -> list[str]:
    """What the first column of a table says."""
    return viewed.texts("table.rows tbody th")


# --- login -----------------------------------------------------------------------------------


def test_the_secret_leaves_the_address_and_stays_in_no_storage(viewed):
    assert "#" not in viewed.driver.current_url
    assert viewed.run("return document.cookie") == ""
    assert viewed.run("return JSON.stringify([localStorage, sessionStorage])") == "[{},{}]"
    assert VIEW_TOKEN not in viewed.run("return document.documentElement.outerHTML")


def test_a_wrong_secret_is_told_and_a_right_one_can_be_typed(viewed):
    viewed.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    viewed.driver.get(f"{viewed.pages.address}/run/{RUN}#token=wrong")
    viewed.wait("the form", lambda: viewed.all("main.login input"))
    assert viewed.all("[role=alert]")
    viewed.press(VIEW_TOKEN, Keys.TAB, "ada", Keys.ENTER)
    viewed.wait("the page asked for", lambda: viewed.texts("h1") == [RUN])


# --- lists -----------------------------------------------------------------------------------


def test_a_run_that_does_not_exist_is_said_once_and_has_no_list(viewed):
    viewed.open("/run/nosuch")
    viewed.says("there is nothing of that name")
    viewed.keep("unknown-run")
    assert not viewed.all("table.rows")
    assert not viewed.all("p.empty")


def test_a_long_reason_of_a_run_stays_on_the_page(viewed):
    viewed.open(f"/run/{RUN}")
    viewed.wait("the head", lambda: viewed.all(".title h1"))
    beyond = viewed.run(
        """const tag = document.createElement("span");
        tag.className = "tag done";
        tag.textContent = "done: " + "http://127.0.0.1:7463/v1".repeat(30);
        document.querySelector(".title h1").after(tag);
        return tag.getBoundingClientRect().right - innerWidth;"""
    )
    viewed.keep("long-reason")
    assert beyond <= 0


def test_the_first_page_has_all_runs_and_the_deployment_as_it_is(viewed):
    runs = viewed.api("/api/runs")["runs"]
    assert sorted(rows(viewed)[: len(runs)]) == sorted(run["run"] for run in runs)
    lanes = ("paused (sandbox)", "the quota is used up", "without m at http://a (model)", "503")
    for text in ("running 152/200", "waiting 90", "98/260", "trainer-2", *lanes):
        viewed.says(text)
    viewed.keep("fleet")


def test_the_numbers_move_while_one_looks_and_stand_still_when_held(viewed):
    deployment = viewed.pages.deployment
    deployment.tell("change", {"leased": 161})
    viewed.says("running 161/200")
    viewed.press("p")
    viewed.wait("nobody looks", lambda: deployment.watched == 0)
    viewed.says("held")
    deployment.seen["leased"] = 170
    assert "running 161/200" in viewed.texts(".totals")[0]
    viewed.press("p")
    viewed.says("running 170/200")
    deployment.seen["leased"] = 152


def test_nobody_is_told_while_the_page_is_hidden(viewed):
    deployment, page = viewed.pages.deployment, viewed.driver.current_window_handle
    viewed.wait("somebody looks", lambda: deployment.watched == 1)
    viewed.driver.switch_to.new_window("tab")
    try:
        viewed.wait("nobody looks", lambda: deployment.watched == 0)
    finally:
        viewed.driver.close()
        viewed.driver.switch_to.window(page)
    viewed.wait("somebody looks again", lambda: deployment.watched == 1)


def test_a_run_shows_the_numbers_and_rows_of_the_api(viewed):
    viewed.open(f"/run/{RUN}")
    page = viewed.api("/api/trajectories", q=f"run:{RUN}")
    assert rows(viewed) == [f"{row['instance']} #{row['sample']}" for row in page["rows"]]
    assert viewed.texts(".pages [aria-live]")[0] == f"{page['count']} trajectories"
    signs = {"pass": "✓", "part": "◐", "fail": "✗", "none": "○"}
    for kind, sign in signs.items():
        shown = viewed.texts(f".rows .state.{kind} [aria-hidden]")
        assert set(shown) == {sign}
    run = viewed.api(f"/api/runs/{RUN}")
    facts = dict(zip(viewed.texts(".facts dt"), viewed.texts(".facts dd"), strict=True))
    assert facts["mean score"] == f"{run['mean']:.2f}".removeprefix("0")
    assert (facts["scored"], facts["failed"]) == (str(run["scored"]), str(run["failed"]))
    viewed.keep("run")


def test_a_bar_of_the_distribution_filters_the_list(viewed):
    viewed.open(f"/run/{RUN}")
    bins = viewed.api("/api/histogram", q=f"run:{RUN}", of="score")["bins"]
    assert viewed.texts(".histogram .amount") == [str(each["count"]) for each in bins]
    viewed.click(".histogram li:last-child a")
    wanted = f"{bins[-1]['count']} trajectories"
    viewed.wait(wanted, lambda: viewed.texts(".pages [aria-live]")[:1] == [wanted])
    assert bins[-1]["q"] in viewed.address
    assert viewed.run("return document.querySelector('input[type=search]').value") == bins[-1]["q"]


def test_pages_by_key_have_every_row_once(viewed):
    viewed.open(f"/run/{MANY_RUN}")
    seen = rows(viewed)
    for _ in range(2):
        first = rows(viewed)[0]
        viewed.click("a[rel=next]")
        viewed.wait("the next page", lambda first=first: rows(viewed)[0] != first)
        seen += rows(viewed)
    assert len(seen) == len(set(seen)) == MANY
    assert not viewed.all("a[rel=next]")
    viewed.click("a[rel=prev]")
    viewed.wait("the page before", lambda: rows(viewed) == seen[100:200])
    viewed.driver.back()
    viewed.wait("the last page again", lambda: rows(viewed) == seen[200:])


def test_a_heading_sorts_and_says_how(viewed):
    viewed.open(f"/run/{RUN}")
    for order, sort in (("descending", "-turns"), ("ascending", "turns")):
        viewed.click("thead a[href*='sort=-turns'], thead a[href*='sort=turns']")
        viewed.wait(order, lambda order=order: viewed.all(f"th[aria-sort={order}]"))
        rows_of_api = viewed.api("/api/trajectories", q=f"run:{RUN}", sort=sort)["rows"]
        wanted = [f"{row['instance']} #{row['sample']}" for row in rows_of_api]
        viewed.wait("sorted", lambda wanted=wanted: rows(viewed) == wanted)


def test_a_query_that_is_not_understood_shows_where(viewed):
    viewed.open("/all", q="run:many scoer:0")
    assert viewed.texts(".misread mark") == ["scoer:0"]
    assert "scoer" in viewed.texts("[role=alert]")[0]
    assert viewed.one("input[type=search]").get_attribute("aria-invalid") == "true"


def test_rows_that_came_since_are_counted_and_do_not_move_the_list(viewed, records):
    viewed.open(f"/run/{MANY_RUN}")
    before = rows(viewed)
    last = next(record for record in reversed(records) if record.run_id == MANY_RUN)
    fresh = last.model_copy(
        update={
            "trajectory_id": f"{MANY_RUN}.new.0",
            "instance_id": "fresh",
            "created": time.time(),
        }
    )
    with viewed.pages.records.open("a") as file:
        file.write(fresh.to_json() + "\n")
    viewed.pages.index.refresh()
    upto = viewed.pages.index.upto()
    viewed.pages.deployment.tell("index", {"upto": upto, "count": upto, "indexing": False})
    viewed.wait("the pill", lambda: viewed.texts(".pill") == ["1 new ↑"])
    assert rows(viewed) == before
    viewed.click(".pill")
    viewed.wait("the new row", lambda: rows(viewed)[0] == "fresh #0")


def test_back_leads_to_the_row_one_left(viewed):
    viewed.open(f"/run/{MANY_RUN}")
    viewed.press(*"j" * 60)
    row = viewed.focused()
    assert viewed.run("return scrollY;") > 0
    viewed.press(Keys.ENTER)
    viewed.wait("the trajectory", lambda: viewed.address.startswith("/t/"))
    viewed.settle()
    viewed.driver.back()
    viewed.wait("the row", lambda: viewed.focused() == row)
    place = (
        "const box = document.activeElement.getBoundingClientRect(); return [box.top, box.bottom];"
    )
    top, bottom = viewed.run(place)
    assert 0 < top < bottom < 900


def test_the_words_of_the_filter_can_be_looked_up(viewed):
    viewed.open("/all")
    viewed.click(".filter .menu summary")
    names = [f"{field['name']}:" for field in viewed.api("/api/fields")["fields"]]
    viewed.wait("all of them", lambda: viewed.texts(".menu th code") == names)


def test_a_damaged_record_is_a_row_that_says_why(viewed):
    viewed.open("/all", q="status:damaged")
    [row] = viewed.api("/api/trajectories", q="status:damaged")["rows"]
    assert viewed.texts("td.grow") == [row["problem"]]
    viewed.press("j", Keys.ENTER)
    viewed.wait("what is wrong", lambda: row["problem"] in " ".join(viewed.texts("[role=alert]")))


def test_columns_are_chosen_and_kept(viewed):
    viewed.open(f"/run/{RUN}")
    assert "model" not in viewed.texts("table.rows thead th")
    viewed.click(".menu:last-child summary")
    viewed.run(
        "[...document.querySelectorAll('.menu label')]"
        ".find((l) => l.textContent.trim() === 'model').click()"
    )
    viewed.driver.refresh()
    viewed.wait("the column", lambda: "model" in viewed.texts("table.rows thead th"))
    assert set(json.loads(viewed.run("return JSON.stringify(Object.keys(localStorage))"))) == {
        "columns"
    }
    viewed.run("localStorage.clear()")


def test_groups_of_a_run_and_the_samples_of_one(viewed, records):
    viewed.open(f"/run/{RUN}", tab="groups")
    groups = viewed.api("/api/groups", q=f"run:{RUN}")["groups"]
    assert rows(viewed) == [group["instance"] for group in groups]
    name = coding(records).group_id
    viewed.open(f"/group/{name}")
    samples = viewed.api(f"/api/groups/{name}")["rows"]
    assert len(samples) == SAMPLES
    assert rows(viewed) == [f"#{row['sample']}" for row in samples]
    assert len(viewed.all(".signs a")) == SAMPLES
    viewed.keep("group")


def test_samples_stand_side_by_side_and_any_of_them_is_the_reference(viewed, records):
    name = coding(records).group_id
    path = f"/api/groups/{name}/compare"
    viewed.open(f"/group/{name}")
    viewed.wait("the comparison", lambda: viewed.all("table.compare"))
    check_comparison(viewed, viewed.api(path))
    shown = viewed.api(path)
    other = shown["samples"][shown["reference"] ^ 1]["id"]
    viewed.click(f"table.compare thead a[href*='ref={other}']")
    viewed.wait("the other", lambda: f"ref={other}" in viewed.address)
    wanted = viewed.api(path, reference=other)
    viewed.wait("aligned anew", lambda: marks(viewed) == marks_of(wanted))
    check_comparison(viewed, wanted)


def test_one_patch_stands_against_another(viewed, records):
    record = next(r for r in records if r.run_id == RUN and r.report.get("dropped"))
    path = f"/api/groups/{record.group_id}"
    samples = viewed.api(f"{path}/compare")
    best = samples["samples"][samples["reference"]]["id"]
    viewed.open(f"/group/{record.group_id}", patch=record.trajectory_id)
    viewed.wait("the patches", lambda: viewed.all("table.diff tr.added"))
    wanted = viewed.api(f"{path}/patches", reference=best, other=record.trajectory_id)["lines"]
    assert any(sign == "+" for sign, _ in wanted)
    script = "return [...document.querySelectorAll('.diff pre')].map((e) => e.textContent);"
    signs = {"=": " ", "-": "-", "+": "+"}
    assert viewed.run(script) == [f"{signs[sign]} {text['text']}" for sign, text in wanted]


def marks(viewed: Viewed) -> list[int]:
    """How many samples did each action, row by row."""
    script = """return [...document.querySelectorAll('table.compare tbody:nth-of-type(2) tr')]
      .slice(1).map((row) => [...row.querySelectorAll('a')].length);"""
    return list(viewed.run(script))


def marks_of(compared: dict[str, Any]) -> list[int]:
    rows_of_api = [sum(at is not None for at in row["messages"]) for row in compared["rows"]]
    for first, last in reversed(compared["folds"]):
        rows_of_api[first : last + 1] = [0]
    return rows_of_api


def check_comparison(viewed: Viewed, compared: dict[str, Any]) -> None:
    assert marks(viewed) == marks_of(compared)
    failing = [row["test"] for row in compared["tests"]["rows"]]
    assert viewed.texts("table.compare tbody:nth-of-type(3) th code") == failing


def test_the_failed_ones_say_why(viewed):
    viewed.open(f"/run/{RUN}", tab="failed")
    assert len(rows(viewed)) == 2
    assert viewed.texts("table.rows td.fail, table.rows td .fail") == ["sandbox at setup"] * 2


# --- dead letters, review, actions -----------------------------------------------------------


def test_dead_letters_are_those_in_redis_with_their_logs(viewed):
    viewed.open("/dead")
    letters = viewed.api("/api/dead")["letters"]
    assert [text.removeprefix("✗ ") for text in viewed.texts("td.fail")] == [
        x["cause"] for x in letters
    ]
    viewed.press("j", Keys.ENTER)
    viewed.says("MemoryError")
    viewed.says(f"hermes-queue dead requeue {letters[0]['id']}")
    viewed.open("/dead", q="cause:poison")
    assert viewed.texts("td.fail") == ["✗ poison"]
    viewed.keep("dead")


def test_review_labels_one_after_the_other_by_keys(viewed):
    viewed.open("/review")
    queue = viewed.api("/api/trajectories", q="flag:* reviewed:no", limit=200)["rows"]
    assert f"1 of {len(queue)}" in viewed.texts(".title")[0]
    viewed.keep("review")
    given = viewed.pages.reviews
    viewed.press("2")
    viewed.wait("the label", lambda: given.labels() == {queue[0]["id"]: "cheating"})
    viewed.wait("the next", lambda: queue[1]["id"] in viewed.address)


def test_who_may_only_look_has_no_button_that_acts(viewed):
    for path in ("/", f"/run/{RUN}", "/dead"):
        viewed.open(path)
        assert viewed.all(".actions") == []
    assert not [url for url in viewed.requests() if "actions" in url]


def test_lists_without_rows_say_what_to_do_next(viewed):
    viewed.open("/all", q="run:nothing")
    viewed.click(".empty a")
    viewed.wait("all", lambda: viewed.address == "/all" and rows(viewed))
    viewed.open("/dead", q="run:nothing")
    assert viewed.texts(".empty a") == ["Show all of them"]
    viewed.open("/review", q="run:nothing")
    assert viewed.texts(".empty a") == ["All that are flagged"]
    viewed.open("/run/nothing")
    assert "in a source that this server does not read" in viewed.texts("[role=alert]")[0]


def test_cancelling_needs_the_name_of_the_run_and_shows_the_command(viewed, enqueued):
    viewed.login(operate=True)
    viewed.open(f"/run/{RUN}")
    viewed.run(
        "[...document.querySelectorAll('.actions button')]"
        ".find((b) => b.textContent === 'Cancel…').click()"
    )
    viewed.says(f"hermes-queue run cancel {RUN}")
    viewed.says("Meets 2 trajectories.")
    final = "dialog[open] button.danger"
    assert not viewed.one(final).is_enabled()
    fields = viewed.all("dialog[open] input")
    fields[-1].send_keys(RUN[:-1])
    assert not viewed.one(final).is_enabled()
    fields[-1].send_keys(RUN[-1])
    assert enqueued.get(RUN).state == "active"
    viewed.keep("action")
    viewed.click(final)
    viewed.wait("it is done", lambda: enqueued.get(RUN).state == "cancelled")
