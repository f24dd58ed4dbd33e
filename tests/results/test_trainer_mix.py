"""Several runs for one trainer: in proportion, and each group once in the weights that survive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from stream_groups import group_id, publish

from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.pacing import pace_of
from hermes_queue.ledger.policy import set_version, version_of
from hermes_queue.trainers.journal import StepJournal
from hermes_queue.trainers.mix import Mix
from hermes_queue.trainers.rows import RowRefused

OpenMix = Callable[..., Mix]
AB = {"a": 2, "b": 1}
ENVS = {
    "easy": {"weight": 1, "run": "a", "env": "gsm8k"},
    "hard": {"weight": 1, "run": "a", "env": "swe_smith"},
}


@pytest.fixture
def mix(ledger: Ledger, tmp_path: Path) -> Iterator[OpenMix]:
    """Opens mixes of this test's Redis and journal, and closes them."""
    with ExitStack() as stack:

        def opened(sources=AB, **options) -> Mix:
            given = {"directory": tmp_path, "group_size": 2, "url": ledger.url, "patience_s": 0.2}
            return stack.enter_context(Mix("trainer", sources, **{**given, **options}))

        yield opened


def aging(ledger: Ledger, mix: OpenMix, advance: Callable[[Mix], object]) -> Mix:
    """A mix of a group of policy 0 and two of policy 5; calls `advance` as it draws from run b."""
    publish(ledger, "1", run="a", policy="0")
    publish(ledger, "2", run="a", policy="5")
    publish(ledger, "1", run="b", policy="5")
    trainer = mix({"a": 1, "b": 1}, max_lag=1)
    draw = trainer.feeds["b"].draw

    def advanced(*until):
        advance(trainer)
        return draw(*until)

    trainer.feeds["b"].draw = advanced
    return trainer


def of_two_envs(ledger: Ledger, mix: OpenMix) -> Mix:
    """A mix of two envs of run a, each with one group, which paces the run."""
    publish(ledger, "1", run="a")
    publish(ledger, "2", run="a", env="swe_smith")
    return mix(ENVS, max_lag=0, pace=2)


def runs(groups) -> str:
    return "".join(group.run_id for group in groups)


def pending(ledger, *sources):
    return [ledger.client.xpending("hq:results", f"trainer.{name}")["pending"] for name in sources]


def test_sources_come_in_the_proportion_of_their_weights(ledger, mix):
    publish(ledger, *"123456", run="a")
    publish(ledger, *"123", run="b")
    assert runs(mix(patience_s=9).take(9)) == "abaabaaba"


def test_a_dry_source_is_waited_for_once_and_owed_one_round_at_most(ledger, mix):
    publish(ledger, *"123456789", run="a")
    trainer = mix({"a": 1, "b": 1})
    assert runs(trainer.take(6)) == "aaaaaa"
    publish(ledger, *"12345", run="b")
    while len(trainer.feeds["b"]._window) < 4:
        assert trainer.take(9, timeout_s=0.2) == []
    assert runs(trainer.take(6)) == "bbabab"


def test_a_batch_that_does_not_fill_in_time_stays_for_the_next_call_and_so_do_the_turns(
    ledger, mix
):
    publish(ledger, "1", run="a")
    publish(ledger, "1", run="b")
    trainer = mix()
    assert trainer.take(3, timeout_s=0.6) == []
    publish(ledger, "2", run="a")
    assert runs(trainer.take(3)) == "aba"
    assert trainer.counts.taken == 3


def test_a_checkpoint_has_the_groups_of_all_sources_or_of_none(ledger, mix, tmp_path):
    publish(ledger, *"12", run="a")
    publish(ledger, *"1", run="b")
    trainer = mix()
    groups = trainer.take(3)
    trainer.trained(1, groups)
    trainer.feeds["a"].saved(1)  # and killed before those of b are acknowledged
    trainer.close()
    assert pending(ledger, "a", "b") == [0, 1]
    again = mix()
    with pytest.raises(ConfigurationError, match="call resume"):
        again.take(1)
    assert again.resume(1) == 3
    assert again.take(1, timeout_s=0.5) == []
    assert (again.counts.recognised, pending(ledger, "a", "b")) == (1, [0, 0])


def test_weights_that_are_lost_are_lost_for_all_sources(ledger, mix):
    publish(ledger, "1", run="a")
    publish(ledger, "1", run="b")
    trainer = mix({"a": 1, "b": 1})
    trainer.trained(1, trainer.take(2))
    trainer.close()
    again = mix({"a": 1, "b": 1})
    assert again.resume(None) == 0
    groups = again.take(2)
    assert sorted(runs(groups)) == ["a", "b"]
    again.trained(1, groups)
    again.saved(1)
    assert pending(ledger, "a", "b") == [0, 0]


def test_a_step_with_a_wrong_group_records_nothing_of_any_source(ledger, mix, tmp_path):
    publish(ledger, "1", run="a")
    publish(ledger, "1", run="b")
    trainer = mix({"a": 1, "b": 1})
    one, two = trainer.take(2)
    with pytest.raises(ValueError, match="was not taken from this mix"):
        trainer.trained(1, [one, two.model_copy(update={"group_id": group_id("9", "b")})])
    trainer.refuse(two, RowRefused("no_tokens", ""))
    trainer.trained(1, [one])
    trainer.saved(1)
    with pytest.raises(ValueError, match="not after the checkpoint of step 1"):
        trainer.trained(1, [])
    trainer.close()
    with_file = StepJournal(tmp_path)
    assert dict(with_file.steps) == {one.group_id: 1}
    with_file.close()
    assert trainer.counts.refused == {"no_tokens": 1}


def test_all_runs_have_the_same_policy_version(ledger, mix):
    set_version(ledger, "b", 7)
    trainer = mix()
    assert [trainer.published(version) for version in (1, 2)] == [8, 9]
    assert [version_of(ledger, run) for run in AB] == [9, 9]
    assert trainer.version == 9


def test_groups_that_grow_too_old_while_others_are_waited_for_give_their_turn_back(ledger, mix):
    trainer = aging(ledger, mix, lambda trainer: trainer.published(5))
    assert sorted(runs(trainer.take(2))) == ["a", "b"]
    assert trainer.counts.dropped == 1


def test_each_run_is_ahead_by_its_share_and_by_a_whole_step_if_it_is_alone(ledger, mix):
    publish(ledger, "1", run="a")
    trainer = mix(max_lag=1, pace=6)
    trainer._begin_take()
    assert [pace_of(ledger, run).max_ahead for run in AB] == [8, 4]
    assert trainer.take(2, timeout_s=1.0) == []  # b is dry
    trainer.take(1)
    assert pace_of(ledger, "a").max_ahead == 12


def test_envs_of_one_run_are_sources_and_one_of_them_says_when_a_group_is_over(ledger, mix):
    trainer = of_two_envs(ledger, mix)
    groups = trainer.take(2)
    assert [group.env for group in groups] == ["gsm8k", "swe_smith"]
    assert pace_of(ledger, "a").max_ahead == 2
    trainer.trained(1, groups)
    trainer.published(1)
    assert pace_of(ledger, "a").ahead == 0
    trainer.close()
    again = mix(ENVS, max_lag=0, pace=2)
    again.resume(None)
    assert len(again.take(2)) == 2
    assert pace_of(ledger, "a").ahead == 2, "the weights that had them are lost"


@pytest.mark.parametrize(
    ("sources", "why"),
    [
        ({}, "at least one source"),
        ({"a": 0}, "not a positive number"),
        ({"a": float("nan")}, "not a positive number"),
        ({"x": {"run": "a"}, "y": {"run": "a", "env": "e"}}, "an env of its own"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused(mix, sources, why):
    with pytest.raises(ConfigurationError, match=why):
        mix(sources)


def test_a_source_that_cannot_be_opened_leaves_no_other_one_open(mix, tmp_path):
    with suppress(ValueError):
        mix({"a": 1, "b": {"group_size": 0}})
    StepJournal(tmp_path).close()


def test_a_version_that_another_process_sets_makes_groups_of_all_sources_too_old(ledger, mix):
    trainer = aging(ledger, mix, lambda _: set_version(ledger, "a", 5))
    assert sorted(group.instance_id for group in trainer.take(2)) == ["1", "2"]
    assert trainer.counts.dropped == 1


@pytest.mark.parametrize("pace", [0, -1])
def test_a_pace_of_no_groups_is_refused(mix, pace):
    with pytest.raises(ConfigurationError, match="number of groups of a step"):
        mix(max_lag=1, pace=pace)


def test_groups_that_a_crash_took_out_of_the_weights_count_as_ahead_in_each_source(ledger, mix):
    trainer = of_two_envs(ledger, mix)
    trainer.trained(1, trainer.take(2))
    trainer.published(1)
    trainer.close()
    again = mix(ENVS, max_lag=1, pace=2)
    again.resume(None)
    again.take(2)
    assert pace_of(ledger, "a").ahead == 2
