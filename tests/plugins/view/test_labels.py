"""Labels and findings, over a real socket."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest
from records import make_job
from view_server import VIEW_TOKEN

from hermes_plugins.view.findings import FindingFiles
from hermes_queue.bodies.reviews import ReviewFile

pytestmark = pytest.mark.xdist_group("view")
FIRST = make_job("run", "one", 0, 2).trajectory_id
SECOND = make_job("run", "one", 1, 2).trajectory_id


@pytest.fixture
def kept(server, tmp_path: Path):
    server.site.reviews = ReviewFile(tmp_path / "reviews.jsonl")
    yield server.site.reviews
    server.site.reviews.path.unlink(missing_ok=True)
    server.site.show_reviews()
    server.site.reviews = None


def count(server, q: str) -> int:
    return server.get(f"/api/trajectories?q={quote(q)}").json["count"]


def give(server, **review):
    return server.post("/api/reviews", review, token=VIEW_TOKEN)


def test_a_label_is_kept_shown_and_filtered_by(server, kept):
    said = give(server, trajectory_id=FIRST, label="cheating", note="reads \u202ethe tests")
    assert said.status == 200
    assert kept.labels() == {FIRST: "cheating"}
    found = server.get("/api/reviews").json
    assert (found["count"], found["labels"]["cheating"], found["writable"]) == (1, 1, True)
    assert "\u202e" not in found["reviews"][0]["note"]["text"]
    assert count(server, "reviewed:cheating") == count(server, "reviewed:yes") == 1
    assert server.get(f"/api/t/{FIRST}").json["review"]["label"] == "cheating"
    assert give(server, trajectory_id=FIRST, label=None).status == 200
    assert count(server, "reviewed:yes") == 0


def test_labels_that_another_process_gives_are_filtered_by(server, kept):
    give(server, trajectory_id=FIRST, label="fine")
    other = ReviewFile(kept.path)
    other.add(kept.read()[FIRST].model_copy(update={"trajectory_id": SECOND}))
    assert count(server, "reviewed:fine") == 2
    found = server.get("/api/reviews?label=fine").json["reviews"]
    assert [each["trajectory_id"] for each in found] == [SECOND, FIRST]


@pytest.mark.parametrize(
    ("review", "status"),
    [
        ({"trajectory_id": FIRST, "label": "good"}, 400),
        ({"trajectory_id": FIRST}, 400),
        ({"trajectory_id": FIRST, "label": "fine", "note": "x" * 2001}, 400),
        ({"trajectory_id": "nobody", "label": "fine"}, 404),
        ({"label": "fine"}, 400),
    ],
)
def test_what_is_no_review_of_ours_is_refused(server, kept, review, status):
    assert give(server, **review).status == status


def test_lines_that_are_no_reviews_are_a_problem_that_lists_name(server, kept):
    kept.path.write_text("no review\n")
    said = server.get("/api/trajectories").json["problems"]
    assert "reviews.jsonl: lines that are no reviews: 1" in said


def test_without_a_file_nobody_gives_labels(server):
    assert server.get("/api/session").json["reviews"] is False
    said = give(server, trajectory_id=FIRST, label="fine")
    assert (said.status, "--reviews" in said.json["hint"]) == (409, True)
    assert server.get("/api/reviews").json["writable"] is False


def test_findings_are_shown_at_their_passages(server, tmp_path):
    path = tmp_path / "findings.jsonl"
    lines = [
        {"trajectory_id": FIRST, "message": 0, "quote": "1+1", "label": "sum", "by": "judge"},
        {"trajectory_id": FIRST, "message": 0, "quote": "2+2", "label": "made up", "by": "judge"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    server.site.findings = FindingFiles([path])
    try:
        found = server.get(f"/api/t/{FIRST}").json
        whole = server.get(f"/api/t/{FIRST}/messages/0").json
    finally:
        server.site.findings = None
    assert [each["broken"] for each in found["findings"]] == [False, True]
    assert found["messages"][0]["content"]["marks"] == [[0, 3, "finding"]]
    assert found["outline"][0]["flags"] == ["sum"] == whole["flags"]
    assert server.get(f"/api/t/{FIRST}").json["findings"] == []
