"""What the API of docs/plugins/view-api.md answers, over a real socket."""

from __future__ import annotations

import gzip
import json
import struct
import time
from contextlib import closing
from dataclasses import replace
from urllib.parse import quote

import pytest
from records import make_job
from view_server import OPERATE_TOKEN, ViewServer

from hermes_plugins.view.routes import comparing, every_route, trajectory

pytestmark = pytest.mark.xdist_group("view")
FIRST = make_job("run", "one", 0, 2).trajectory_id
STRANGE = "odd/id.0"


def t(name: str, rest: str = "") -> str:
    return f"/api/t/{quote(name, safe='')}{rest}"


def test_pages_of_a_list_have_every_row_once(server):
    found, after = [], ""
    while True:
        page = server.get(f"/api/trajectories?sort=score&limit=2&after={after}").json
        found += [row["id"] for row in page["rows"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert len(found) == len(set(found)) == page["count"] == 6


def test_a_pinned_list_has_no_row_that_came_later(server):
    first = server.get("/api/trajectories?sort=created").json
    pinned = server.get(f"/api/trajectories?upto={first['upto'] - 1}").json
    assert pinned["count"] == first["count"] - 1


def test_a_filter_chooses_and_one_that_is_not_understood_says_where(server):
    assert server.get("/api/trajectories?q=score%3A1").json["count"] == 3
    said = server.get("/api/trajectories?q=score%3A1%20scroe%3A1")
    assert said.status == 400
    assert (said.json["at"], "score" in said.json["hint"]) == (8, True)


@pytest.mark.parametrize(
    "query",
    [
        "q=" + "x" * 3000,
        "q=%ff",
        "q=a%00b",
        "sort=nothing",
        "sort=score%3BDROP+TABLE+t",
        "after=x",
        "after=W10",
        "upto=-1",
        "upto=1e3",
        "upto=99999999999999999999",
        "upto=%D9%A1",
        "limit=0",
        "limit=501",
        "limit=",
        "q=&q=",
        "page=2",
        "q=created%3A%3E" + "9" * 400,
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(server, query):
    said = server.get(f"/api/trajectories?{query}")
    assert said.status == 400
    assert said.json["error"]


HOSTILE = ["'", '"', "' OR 1=1 --", "../../etc/passwd", "%", "_", "x" * 500, "\u202e", "a b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_an_id_that_nobody_has_is_unknown_on_every_route(server, name):
    for route in every_route():
        if "{id}" in route.path and route.method == "GET" and route.role == "view":
            path = route.path.replace("{id}", quote(name, safe="")).replace("{number}", "0")
            said = server.get(path)
            assert (said.status, set(said.json)) == (404, {"error", "hint"}), path


def test_a_trajectory_is_shown_with_its_first_messages(server):
    found = server.get(t(FIRST, "?q=run%3Arun&sort=score")).json
    assert found["row"]["id"] == found["head"]["id"] == FIRST
    assert [m["content"]["text"] for m in found["messages"]] == ["1+1", "2"]
    assert found["next"] is None
    assert found["neighbours"]["count"] == 4
    assert {"report", "stages", "events", "attempts", "outline", "sequences"} <= set(found)
    assert server.get(t(FIRST)).json["neighbours"] is None


def test_messages_come_from_a_number_on_and_one_by_one(server):
    assert [m["n"] for m in server.get(t(FIRST, "/messages?from=1")).json["messages"]] == [1]
    assert server.get(t(FIRST, "/messages?from=9")).json == {"messages": [], "next": None}
    assert server.get(t(FIRST, "/messages/1")).json["content"]["text"] == "2"
    for number in ("2", "-1", "99999999999", "x", "%D9%A1"):
        assert server.get(t(FIRST, f"/messages/{number}")).status == 404


def test_a_record_of_a_strange_shape_is_shown(server):
    for part in ("", "/messages", "/messages/0", "/messages/2", "/patch", "/verifier"):
        said = server.get(t(STRANGE, part))
        assert said.status == 200, part
        assert said.headers["content-type"] == "application/json"
        json.loads(said.body.decode("utf-8"))
        assert "\ufeff" not in said.body.decode()


def test_a_slash_in_an_id_must_be_encoded(server):
    assert server.get("/api/t/odd/id.0").status == 404


def test_a_record_is_saved_and_never_opened_in_a_window(server):
    said = server.get(t(STRANGE, "/record"))
    assert said.headers["content-disposition"] == 'attachment; filename="odd-id-0.json"'
    assert said.headers["content-security-policy"].endswith("sandbox")
    assert said.headers["x-content-type-options"] == "nosniff"
    assert json.loads(said.body)["trajectory_id"] == STRANGE
    assert json.loads(said.body)["messages"][1:] == ["text", None]


def test_only_so_many_records_are_saved_at_a_time_since_each_is_in_memory(server, monkeypatch):
    monkeypatch.setattr(server.site, "saving", trajectory.SAVED_AT_ONCE)
    path = t(STRANGE, "/record")
    assert server.get(path).status == 503
    monkeypatch.setattr(server.site, "saving", 0)
    assert [server.get(path).status for _ in range(3)] == [200] * 3
    while server.site.saving:
        time.sleep(0.01)


def test_tokens_come_as_octets(server):
    said = server.get(t(FIRST, "/tokens/0"))
    if said.status == 404:
        pytest.fail("the records of this test have tokens")
    n = int(said.headers["x-hq-tokens"])
    assert len(said.body) == 9 * n
    ids = struct.unpack(f"<{n}i", said.body[: 4 * n])
    sequence = json.loads(server.get(t(FIRST, "/record")).body)["sequences"][0]
    assert list(ids) == sequence["ids"]
    assert list(said.body[4 * n : 5 * n]) == sequence["loss_mask"]
    assert server.get(t(FIRST, "/tokens/0/turns")).json["turns"]
    assert server.get(t(FIRST, "/tokens/7")).status == 404
    assert server.get(t(FIRST, "/tokens/0/text")).json["hint"].endswith("--tokenizer")


def test_with_a_tokenizer_ids_come_as_text(server):
    class Letters:
        def pieces(self, ids):
            return [(chr(97 + each), 1) for each in ids]

    ids = json.loads(server.get(t(FIRST, "/record")).body)["sequences"][0]["ids"]
    with closing(ViewServer(replace(server.site, tokenizer=Letters()))) as served:
        assert served.get("/api/session").json["tokenizer"]
        pieces = served.get(t(FIRST, "/tokens/0/text")).json["pieces"]
        assert pieces == [[chr(97 + each), 1] for each in ids]
        assert served.get(t(FIRST, "/tokens/7/text")).status == 404
        assert served.get(t(STRANGE, "/tokens/0/text")).status == 200


def test_what_is_damaged_has_a_row_and_says_why_it_is_not_shown(server):
    [row] = server.get("/api/trajectories?q=status%3Adamaged").json["rows"]
    said = server.get(t(row["id"]))
    assert said.status == 422
    assert said.json["error"]


def test_runs_and_groups_have_their_numbers(server):
    by_name = {run["run"]: run for run in server.get("/api/runs").json["runs"]}
    assert (by_name["run"]["count"], by_name["run"]["scored"], by_name["run"]["ledger"]) == (
        4,
        3,
        None,
    )
    assert server.get("/api/runs/run").json["failures"] == [
        {"cause": "sandbox", "stage": "setup", "count": 1}
    ]
    [first, *_] = server.get("/api/groups?q=run%3Arun&sort=-std").json["groups"]
    assert first["mean"] == 0.5
    group = server.get(f"/api/groups/{first['group']}").json
    assert [row["sample"] for row in group["rows"]] == [0, 1]
    assert sum(b["count"] for b in server.get("/api/histogram?of=score").json["bins"]) == 4
    assert server.get("/api/histogram?of=secrets").status == 400
    assert any(f["name"] == "score" for f in server.get("/api/fields").json["fields"])


def test_the_samples_of_a_group_are_compared(server):
    [group] = server.get("/api/groups?q=run%3Arun%20instance%3Aone").json["groups"]
    path = f"/api/groups/{group['group']}/compare"
    found = server.get(path).json
    assert [sample["score"] for sample in found["samples"]] == [1.0, 0.0]
    second = found["samples"][1]["id"]
    assert server.get(f"{path}?reference={second}").json["reference"] == 1
    assert server.get(f"{path}?reference=other").status == 400
    patches = f"/api/groups/{group['group']}/patches"
    assert server.get(f"{patches}?reference={second}&other={second}").json["same"]
    assert server.get(f"{patches}?reference={second}").status == 400
    assert server.get("/api/groups/strange/compare").status == 200


def test_records_too_large_to_be_in_memory_together_are_not_compared(server, monkeypatch):
    monkeypatch.setattr(comparing, "COMPARED_BYTES", 100)
    assert server.get("/api/groups/strange/compare").status == 422


def test_records_that_are_large_once_they_are_unpacked_are_not_compared(server, monkeypatch):
    group = server.get("/api/groups?q=run:run").json["groups"][0]["group"]
    monkeypatch.setattr(comparing, "COMPARED_MEMORY_BYTES", 1 << 20)
    assert server.get(f"/api/groups/{quote(group)}/compare").status == 200
    monkeypatch.setattr(comparing, "COMPARED_MEMORY_BYTES", 1000)
    assert server.get(f"/api/groups/{quote(group)}/compare").status == 422
    assert comparing.memory_bytes({"a": ["x" * 10_000, [b"y" * 10_000]]}) > 20_000


def test_a_large_answer_is_packed_for_those_who_unpack(server):
    plain = server.get("/api/fields")
    packed = server.get("/api/fields", headers=[("Accept-Encoding", "gzip, br")])
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body)
    assert gzip.decompress(packed.body) == plain.body


def test_files_alone_have_no_deployment(server):
    for path in ("/api/overview", "/api/dead", "/api/dead/1-0"):
        assert server.get(path).json["error"] == "Redis is not among the sources"


def test_whoever_operates_may_look_too(server):
    assert server.get("/api/runs", token=OPERATE_TOKEN).status == 200


def test_head_says_what_get_says_without_a_body(server):
    got, said = server.get("/api/runs"), server.get("/api/runs", method="HEAD")
    assert said.body == b""
    for name in ("content-length", "content-type"):
        assert said.headers[name] == got.headers[name]
