"""Groups for a trainer: each once in the weights that survive, none older than its bound."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from stream_groups import group_id, names, pending, publish

import hermes_queue
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.policy import set_version, version_of
from hermes_queue.trainers.journal import FILE_NAME
from hermes_queue.trainers.rows import Row, RowRefused, rows_of

ROOT = Path(__file__).parents[2]
TRAINER = ROOT / "tests" / "support" / "trainer_process.py"


def train(ledger: Ledger, directory: Path, kill: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TRAINER), ledger.url, str(directory), "6", kill]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(
    ("kill", "journal_then", "recognised"),
    [("taken:3", 2, 0), ("trained:3", 3, 0), ("checkpoint:4", 4, 2)],
)
def test_a_killed_trainer_has_every_group_once_in_the_weights_that_survive(
    ledger, tmp_path, kill, journal_then, recognised
):
    publish(ledger, *"abcdef")
    journal = tmp_path / FILE_NAME
    killed = train(ledger, tmp_path, kill)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(journal.read_text().splitlines()) == journal_then
    finished = train(ledger, tmp_path, "")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == {"recognised": recognised}
    weights = json.loads((tmp_path / "checkpoint.json").read_text())["groups"]
    assert sorted(weights) == sorted(group_id(name) for name in "abcdef")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert lines == [{"step": n + 1, "groups": [group]} for n, group in enumerate(weights)]
    assert pending(ledger) == 0


def test_the_loop_of_the_documentation_trains_saves_and_goes_on(ledger, tmp_path, monkeypatch):
    publish(ledger, *"abcdefghijklmnopqrst")
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", ledger.url)
    page = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    made: dict[str, Any] = {}
    exec(page.split("```python\n")[1].partition("```")[0], made)
    saved: list[int] = []
    batches: list[list[Row]] = []
    for steps in (10, 20):
        made["train"](
            "run",
            tmp_path,
            lambda: saved[-1] if saved else None,
            batches.append,
            saved.append,
            steps=steps,
            group_size=2,
            groups_per_step=1,
        )
    assert saved == [10, 20]
    assert len({row.group_id for rows in batches for row in rows}) == len(batches) == 20
    assert [row.advantage for row in batches[0]] == [-0.5, 0.5]
    assert version_of(ledger, "run") == 20
    assert ledger.client.xpending("hq:results", "trainer-run")["pending"] == 0


def test_groups_are_acknowledged_by_the_checkpoint_that_holds_them(ledger, feed):
    publish(ledger, *"abc")
    trainer = feed()
    groups = trainer.take(3)
    for step, group in enumerate(groups, 1):
        trainer.trained(step, [group])
    assert pending(ledger) == 3
    trainer.saved(2)  # written in the background while step 3 was trained
    assert pending(ledger) == 1
    trainer.saved(1)
    assert pending(ledger) == 1
    trainer.saved(3)
    assert pending(ledger) == 0
    assert (trainer.counts.taken, trainer.counts.trained, trainer.counts.saved) == (3, 3, 3)


def test_a_trainer_that_goes_on_must_say_from_which_checkpoint(ledger, feed):
    publish(ledger, *"ab")
    first = feed()
    first.trained(1, first.take(1))
    first.close()
    again = feed()
    with pytest.raises(ConfigurationError, match="call resume"):
        again.take(1)
    assert again.resume(None) == 0
    assert sorted(names(again.take(2))) == ["a", "b"]
    with pytest.raises(RuntimeError, match="before the first take"):
        again.resume(1)


def test_groups_of_written_batches_neither_come_again_nor_are_acknowledged_too_early(ledger, feed):
    publish(ledger, *"abc")
    first = feed()
    for step in (1, 2):
        first.trained(step, first.take(1))
    first.saved(1)
    first.close()
    again = feed()
    assert again.resume(1, kept=2) == 2
    assert names(again.take(1)) == "c"
    while not again.counts.recognised:
        assert again.take(1, timeout_s=0.1) == []
    assert pending(ledger) == 2
    again.saved(2)
    assert pending(ledger) == 1


def test_a_checkpoint_without_a_journal_is_warned_of(feed, caplog):
    assert feed().resume(7) == 0
    assert "no group is known to be in the weights of step 7" in caplog.text


def test_a_group_that_redis_holds_twice_is_trained_once(ledger, feed):
    publish(ledger, *"ab")
    [[_, entry], _] = ledger.client.xrange("hq:results")
    ledger.client.xadd("hq:results", entry)  # as after a power loss of Redis
    trainer = feed(window=3)
    assert names(trainer.take(1)) == "a"
    assert names(trainer.take(1)) == "b"
    assert trainer.take(1, timeout_s=0.3) == []
    assert trainer.counts.taken == 2


def test_a_repetition_during_training_is_acknowledged_with_the_checkpoint(ledger, feed):
    publish(ledger, "a")
    trainer = feed()
    groups = trainer.take(1)
    trainer.trained(1, groups)
    [[_, entry]] = ledger.client.xrange("hq:results")
    ledger.client.xadd("hq:results", entry)
    assert trainer.take(1, timeout_s=0.3) == []
    assert pending(ledger) == 2
    trainer.saved(1)
    assert pending(ledger) == 0
    ledger.client.xadd("hq:results", entry)
    assert trainer.take(1, timeout_s=0.3) == []
    assert (trainer.counts.recognised, pending(ledger)) == (1, 0)


def test_a_batch_that_does_not_fill_in_time_stays_for_the_next_call(ledger, feed):
    publish(ledger, *"ab")
    trainer = feed()
    assert trainer.take(3, timeout_s=0.3) == []
    publish(ledger, "c")
    assert names(trainer.take(3)) == "abc"


def test_groups_too_old_when_they_are_taken_are_dropped_and_acknowledged(ledger, feed):
    publish(ledger, "a", policy="1")
    publish(ledger, "b", policy="3")
    trainer = feed(max_lag=2)
    assert trainer.take(3, timeout_s=0.3) == []
    hermes_queue.set_policy_version("run", 4, url=ledger.url)
    assert names(trainer.take(1)) == "b"
    assert (trainer.counts.dropped, trainer.counts.stale, pending(ledger)) == (1, 0, 1)


def test_a_group_that_grows_too_old_while_others_are_waited_for_is_not_in_the_batch(
    ledger, feed, monkeypatch
):
    publish(ledger, "a", policy="1")
    publish(ledger, "b", policy="5")
    trainer = feed(max_lag=2)
    refresh = trainer._policy.refresh
    seen = []

    def published_meanwhile() -> None:
        seen.append(1)
        if len(seen) == 2:
            hermes_queue.set_policy_version("run", 5, url=ledger.url)
        refresh()

    monkeypatch.setattr(trainer._policy, "refresh", published_meanwhile)
    publish(ledger, "c", policy="5")
    assert names(trainer.take(2)) == "bc"
    assert trainer.counts.dropped == 1


def test_a_loss_that_corrects_for_age_may_train_stale_groups(ledger, feed):
    publish(ledger, "a", policy="1")
    publish(ledger, "b", policy=None)
    hermes_queue.set_policy_version("run", 4, url=ledger.url)
    trainer = feed(max_lag=2, on_stale="train")
    assert names(trainer.take(2)) == "ab"
    counts = trainer.counts
    assert (counts.dropped, counts.stale, counts.policy_unknown) == (0, 1, 1)


def test_a_window_hands_out_the_oldest_policy_first(ledger, feed):
    for name, policy in (("a", "3"), ("b", "1"), ("c", "2")):
        publish(ledger, name, policy=policy)
    assert names(feed(window=3).take(2)) == "bc"


def test_groups_that_teach_nothing_or_of_an_evaluation_never_come(ledger, feed):
    publish(ledger, "a", scores=(1.0, 1.0))
    publish(ledger, "b", scores=(1.0, None))
    publish(ledger, "c", evaluation=True)
    publish(ledger, "d")
    trainer = feed()
    assert names(trainer.take(1)) == "d"
    assert trainer.take(1, timeout_s=0.2) == []
    assert pending(ledger) == 1


def test_unfit_groups_become_dead_letters_and_do_not_stop_the_others(ledger, feed):
    publish(ledger, "a", scores=(0.0, 1.0, 1.0))
    publish(ledger, "b")
    trainer = feed(check=lambda group: rows_of(group, max_tokens=2))
    publish(ledger, "c")
    assert trainer.take(1, timeout_s=0.5) == []
    assert trainer.counts.refused == {"group_size": 1, "too_long": 2}
    reasons = [fields[b"reason"] for _, fields in ledger.client.xrange("hq:dead")]
    assert len(reasons) == 3
    assert pending(ledger) == 0


def test_a_group_that_an_adapter_refuses_is_given_up(ledger, feed):
    publish(ledger, *"ab")
    trainer = feed()
    first, second = trainer.take(2)
    trainer.refuse(first, RowRefused("no_tokens", "none"))
    assert (pending(ledger), ledger.client.xlen("hq:dead")) == (1, 1)
    with pytest.raises(ValueError, match="not taken"):
        trainer.trained(1, [first])
    trainer.trained(1, [second])
    with pytest.raises(ValueError, match="trained already"):
        trainer.refuse(second, RowRefused("no_tokens", "none"))


def test_what_was_not_taken_or_comes_after_its_checkpoint_is_not_recorded(ledger, feed, tmp_path):
    publish(ledger, *"abc")
    trainer = feed(window=3)
    first, second = trainer.take(2)
    waiting = first.model_copy(update={"group_id": group_id("c")})
    with pytest.raises(ValueError, match="was not taken from this feed"):
        trainer.trained(1, [waiting])
    trainer.trained(1, [first])
    trainer.saved(1)
    with pytest.raises(ValueError, match="not after the checkpoint of step 1"):
        trainer.trained(1, [second])
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == 1


def test_an_outage_at_a_checkpoint_delays_the_acknowledgement_only(
    ledger, feed, redis_server, monkeypatch
):
    publish(ledger, *"ab")
    trainer = feed()
    trainer.trained(1, trainer.take(1))
    redis_server.kill9()
    trainer.saved(1)
    redis_server.start()
    assert names(trainer.take(1)) == "b"
    assert pending(ledger) == 1


def test_versions_of_a_trainer_that_counts_anew_never_go_back(ledger, feed):
    first = feed()
    assert [first.published(version) for version in (0, 1, 2)] == [0, 1, 2]
    first.close()
    again = feed()
    assert [again.published(version) for version in (1, 2, 2, 3)] == [3, 4, 4, 5]
    assert again.version == version_of(ledger, "run") == 5


def test_versions_that_go_on_are_taken_as_they_are(ledger, feed):
    hermes_queue.set_policy_version("run", 3, url=ledger.url)
    assert feed().published(8) == 8


def test_a_second_trainer_of_a_directory_is_refused(feed):
    feed()
    with pytest.raises(ConfigurationError, match="another process is writing"):
        feed()


def test_an_option_that_does_not_exist_is_refused(feed):
    with pytest.raises(ValidationError, match="allow_evaluation"):
        feed(allow_evaluation=True)


def test_weights_may_be_named_by_the_version_that_publishing_them_will_set(ledger, feed) -> None:
    set_version(ledger, "run", 7)
    trainer = feed()
    assert trainer.numbered(1) == 8
    assert version_of(ledger, "run") == 7
    assert [trainer.published(1), trainer.numbered(2), trainer.published(2)] == [8, 9, 9]
