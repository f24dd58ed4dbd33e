"""Shards on the hub: each row once, whenever a pusher is killed, and nothing but by its leave."""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hub_server import PART_BYTES, TOKEN, HubServer, serving_hub
from records import make_job, make_record
from worker_process import wait_until
from zygote import start_forked

from hermes_plugins.datasets.hf import CardOptions, HfSink
from hermes_plugins.datasets.hub import HubUnavailable
from hermes_queue.errors import ConfigurationError
from hermes_queue.sinks.datasets.jsonl import JsonlSink

pytestmark = pytest.mark.filterwarnings(
    "ignore:Use 'content=:DeprecationWarning"  # of httpx, by huggingface_hub
)
REPO = "someone/trajectories"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    import huggingface_hub.constants

    with serving_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        # This process has read the variables when it imported the library.
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield server


def sink(folder: Path, **options: Any) -> HfSink:
    return HfSink(folder, CardOptions(**{"repo": REPO, "shard_rows": 2, **options}))


def record(name: str, text: str = "") -> Any:
    made = make_record(make_job(instance=name))
    return made.model_copy(update={"report": {"reason": text}})


def fill(opened: HfSink, *names: str) -> None:
    for name in names:
        opened.write([record(name)])


def rows(hub: HubServer) -> list[str]:
    """The instances in the repository's shards, in order."""
    files = hub.datasets[REPO].files
    shards = sorted(path for path in files if path.startswith("data/"))
    return [
        name
        for path in shards
        for name in pq.read_table(io.BytesIO(files[path])).column("instance_id").to_pylist()
    ]


# --- what is committed ---------------------------------------------------------------------


def test_each_shard_is_one_commit_with_the_card_in_a_private_repository(
    hub: HubServer, tmp_path: Path
) -> None:
    with sink(tmp_path / "out") as opened:
        fill(opened, "a", "b", "c")
        assert hub.datasets[REPO].shards == [["data/train-00000.parquet"]], "while it is filled"
    repository = hub.datasets[REPO]
    assert repository.private
    assert repository.shards == [["data/train-00000.parquet"], ["data/train-00001.parquet"]]
    assert [sorted(each.added)[0] for each in repository.commits[1:]] == ["README.md"] * 2
    assert repository.files["README.md"] == (tmp_path / "out/README.md").read_bytes()
    assert rows(hub) == ["a", "b", "c"]
    assert opened.remarks == [f"{REPO}: 2 shards, 2 of them committed now"]


def test_a_large_shard_is_sent_in_parts(hub: HubServer, tmp_path: Path) -> None:
    with sink(tmp_path / "out") as opened:
        opened.write([record("a", os.urandom(2 * PART_BYTES).hex())])
    assert len(hub.parts) >= 2
    assert rows(hub) == ["a"]


def test_the_names_on_disk_and_nothing_else_are_committed(hub: HubServer, tmp_path: Path) -> None:
    with sink(tmp_path / "out") as opened:
        fill(opened, "a")
    (tmp_path / "out/data/notes.txt").write_text("mine")
    with sink(tmp_path / "out"):
        pass
    assert set(hub.datasets[REPO].files) == {
        ".gitattributes",
        "README.md",
        "data/train-00000.parquet",
    }


def test_opening_again_commits_only_what_is_new(hub: HubServer, tmp_path: Path) -> None:
    with sink(tmp_path / "out") as opened:
        fill(opened, "a")
    with sink(tmp_path / "out"):
        pass
    assert len(hub.datasets[REPO].commits) == 2
    with sink(tmp_path / "out") as opened:
        fill(opened, "a", "b")
    assert len(hub.datasets[REPO].commits) == 3
    assert rows(hub) == ["a", "b"]


def test_a_card_that_says_something_else_is_committed_alone(hub: HubServer, tmp_path: Path) -> None:
    with sink(tmp_path / "out") as opened:
        fill(opened, "a")
    with sink(tmp_path / "out", licence="mit"):
        pass
    assert hub.datasets[REPO].commits[-1].added == ["README.md"]
    assert b"license: mit" in hub.datasets[REPO].files["README.md"]


def test_a_dry_run_says_what_it_would_do_and_makes_no_repository(
    hub: HubServer, tmp_path: Path
) -> None:
    with sink(tmp_path / "out", dry_run=True) as opened:
        fill(opened, "a", "b", "c")
    assert hub.datasets == {}
    assert opened.remarks == [
        f"{REPO}: would commit data/train-00000.parquet",
        f"{REPO}: would commit data/train-00001.parquet",
    ]
    with sink(tmp_path / "out"):
        pass
    with sink(tmp_path / "out", dry_run=True) as opened:
        fill(opened, "d")
    assert opened.remarks == [f"{REPO}: would commit data/train-00002.parquet"]
    assert rows(hub) == ["a", "b", "c"]


# --- failures ------------------------------------------------------------------------------


def test_an_outage_ends_neither_the_filling_nor_loses_a_shard(
    hub: HubServer, tmp_path: Path
) -> None:
    opened = sink(tmp_path / "out")
    hub.fails_with = 418
    fill(opened, "a", "b", "c")
    with pytest.raises(HubUnavailable, match="stays in the folder"):
        opened.close()
    hub.fails_with = None
    with sink(tmp_path / "out"):
        pass
    assert rows(hub) == ["a", "b", "c"]


@pytest.mark.parametrize("status", [400, 403])
def test_a_store_that_refuses_an_upload_is_an_outage_and_its_address_is_not_shown(
    hub: HubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.INFO)
    hub.store_fails_with = status
    opened = sink(tmp_path / "out")
    fill(opened, "a", "b")
    assert "stays in the folder" in caplog.text
    assert "SIGNED" not in caplog.text
    hub.store_fails_with = None
    opened.close()
    assert rows(hub) == ["a", "b"]


def test_a_commit_whose_answer_was_lost_is_not_made_twice(hub: HubServer, tmp_path: Path) -> None:
    def lose_the_answer() -> None:
        raise ConnectionResetError

    hub.after_commit = lose_the_answer
    opened = sink(tmp_path / "out")
    fill(opened, "a", "b")
    hub.after_commit = lambda: None
    fill(opened, "c", "d")
    opened.close()
    assert hub.datasets[REPO].shards == [["data/train-00000.parquet"], ["data/train-00001.parquet"]]


def test_a_commit_of_another_in_between_is_built_upon(hub: HubServer, tmp_path: Path) -> None:
    def somebody_commits() -> None:
        hub.before_commit = lambda: None
        hub.datasets[REPO].commit("by hand", {"LICENSE": b"mine"})

    hub.before_commit = somebody_commits
    with sink(tmp_path / "out") as opened:
        fill(opened, "a")
    assert rows(hub) == ["a"]
    assert hub.datasets[REPO].files["LICENSE"] == b"mine"


def test_two_outs_that_begin_at_once_do_not_mix(hub: HubServer, tmp_path: Path) -> None:
    one, other = sink(tmp_path / "one"), sink(tmp_path / "other")
    fill(one, "a", "b")
    with pytest.raises(ConfigurationError, match=r"holds data/train-00000\.parquet"):
        fill(other, "c", "d")
    one.close()
    assert rows(hub) == ["a", "b"]


def test_a_repository_with_the_rows_of_another_out_is_refused(
    hub: HubServer, tmp_path: Path
) -> None:
    with sink(tmp_path / "one") as opened:
        fill(opened, "a")
    with pytest.raises(ConfigurationError, match="another sink fills it"):
        sink(tmp_path / "other")
    assert rows(hub) == ["a"]


def test_a_card_from_elsewhere_is_not_replaced(hub: HubServer, tmp_path: Path) -> None:
    hub.create(REPO, private=True).commit("card", {"README.md": b"# Mine"})
    with pytest.raises(ConfigurationError, match="from elsewhere"):
        sink(tmp_path / "out")


def test_a_public_repository_needs_leave(hub: HubServer, tmp_path: Path) -> None:
    hub.create(REPO, private=False)
    with pytest.raises(ConfigurationError, match="add --public"):
        sink(tmp_path / "out")
    with sink(tmp_path / "out", public=True) as opened:
        fill(opened, "a")
    assert rows(hub) == ["a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repo": "trajectories"}, "must be OWNER/NAME"),
        ({"repo": "a/../b"}, "must be OWNER/NAME"),
        ({"repo": None, "dry_run": True}, "need --repo"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    hub: HubServer, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sink(tmp_path / "out", **options)
    assert hub.requests == []


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_wrong_token_is_named_and_not_shown(
    hub: HubServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dry_run: bool,
) -> None:
    wrong = "hf_" + "wRoNg" * 7
    monkeypatch.setenv("HF_TOKEN", wrong)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ConfigurationError, match="set HF_TOKEN") as refused:
        sink(tmp_path / "out", dry_run=dry_run)
    assert wrong not in str(refused.value) + caplog.text
    assert hub.datasets == {}


# --- SIGKILL -------------------------------------------------------------------------------


@pytest.mark.fleet
@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_a_pusher_killed_at_a_commit_repeats_no_row_and_loses_none(
    hub: HubServer, tmp_path: Path, moment: str
) -> None:
    with JsonlSink(tmp_path / "records.jsonl") as records:
        records.write([record(f"i{n}") for n in range(40)])
    reached, go_on = threading.Event(), threading.Event()
    commits: list[int] = []

    def hold_the_second() -> None:
        commits.append(1)
        if len(commits) == 2:
            reached.set()
            go_on.wait(60)

    setattr(hub, moment, hold_the_second)
    words = ("export", "--format", "hf", "--from", "records.jsonl", "--out", "out")
    words += ("--shard-rows", "2", "--repo", REPO)

    def start() -> Any:
        return start_forked("hermes_queue.cli", *words, directory=tmp_path)

    process = start()
    wait_until("the second commit", lambda: reached.is_set() or process.poll() is not None)
    assert reached.is_set(), process.communicate()
    process.kill()
    process.communicate()
    setattr(hub, moment, lambda: None)
    again = start()
    code = again.wait(60)
    out, err = again.communicate()
    go_on.set()
    assert code == 0, out + err
    assert TOKEN not in out + err
    assert rows(hub) == [f"i{n}" for n in range(40)]
    assert all(len(each) == 1 for each in hub.datasets[REPO].shards)
