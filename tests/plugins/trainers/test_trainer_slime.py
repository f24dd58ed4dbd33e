"""slime's data source, rollout function and rewards, with its types as documented."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slime_types import NORMALIZATION, normalization, slime_types
from trainer_groups import CASES, group_of, publish_group

from hermes_plugins.trainers import versions
from hermes_plugins.trainers.slime import QueueDataSource, generate_rollout, normalize_rewards
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.policy import version_of
from hermes_queue.models import make_ids
from hermes_queue.trainers.journal import FILE_NAME
from hermes_queue.trainers.rows import rows_of

Open = Callable[..., QueueDataSource]


@pytest.fixture
def args(tmp_path: Path) -> SimpleNamespace:
    """slime's arguments, as far as they matter."""
    return SimpleNamespace(
        rollout_batch_size=2,
        n_samples_per_prompt=4,
        global_batch_size=8,
        rollout_temperature=1.0,
        rollout_global_dataset=True,
        num_rollout=10,
        save=str(tmp_path),
        save_interval=1,
        use_tis=True,
        use_rollout_logprobs=False,
        async_save=False,
        reward_key=None,
        rewards_normalization=True,
        advantage_estimator="grpo",
        grpo_std_normalization=True,
    )


@pytest.fixture
def source(
    ledger: Ledger, args: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Makes data sources as slime does, and closes them."""
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", ledger.url)
    monkeypatch.setenv("HERMES_QUEUE_TRAINER_RUN", "run")
    monkeypatch.setattr(versions, "version", lambda _: "624b824")
    opened: list[QueueDataSource] = []

    def made(**options: Any) -> QueueDataSource:
        vars(args).update(options)
        opened.append(QueueDataSource(args))
        return opened[-1]

    with slime_types():
        yield made
        for each in opened:
            each.feed.close()


def publish(ledger: Ledger, *names: str) -> None:
    for name in names:
        publish_group(ledger, group_of(name).group)


def pending(ledger: Ledger) -> int:
    return ledger.client.xpending("hq:results", "trainer")["pending"]


def names(output: Any) -> str:
    """Of the groups of a rollout, of those that are named by a letter."""
    letters = {make_ids("run", letter, 0)[0]: letter for letter in "abcdef"}
    return "".join(letters[group[0].metadata["group_id"]] for group in output.samples)


def test_a_rollout_is_finished_groups_with_the_response_cut_at_the_first_trained_token(
    ledger, args, source
) -> None:
    publish_group(ledger, CASES["several_turns"].group)
    publish_group(ledger, CASES["two_sequences"].group)
    data = source()
    data.load(-1)
    output = generate_rollout(args, 0, data)
    groups = [CASES["several_turns"].group, CASES["two_sequences"].group]
    rows = [row for group in groups for row in rows_of(group)]
    samples = [sample for group in output.samples for sample in group]
    assert [len(group) for group in output.samples] == [4, 8]
    for row, sample in zip(rows, samples, strict=True):
        assert sample.tokens == [*row.ids]
        assert sample.tokens[: -sample.response_length] == [*row.ids[: row.cut]]
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
        assert sample.loss_mask == [1, 1, 0, 0, 0, 0, 1, 1, 1]
        assert sample.rollout_log_probs == [*row.logprobs[row.cut :]]
        assert (sample.reward, sample.weight_versions) == (row.score, [str(row.version)])
        assert sample.status.value == "completed"
    assert [sample.group_index for sample in samples] == [0] * 4 + [1] * 8
    assert [sample.rollout_id for sample in samples] == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7]


def test_groups_are_acknowledged_when_the_model_is_saved_though_the_next_rollout_is_out(
    ledger, args, source
) -> None:
    publish(ledger, *"abcd")
    data = source()
    data.load(-1)
    generate_rollout(args, 0, data)
    generate_rollout(args, 1, data)  # train_async asks for it before it trains the one before
    assert pending(ledger) == 4
    data.save(0)
    assert pending(ledger) == 2


def test_with_checkpoints_in_the_background_only_the_one_before_is_taken_as_durable(
    ledger, args, source
) -> None:
    publish(ledger, *"abcd")
    data = source(async_save=True)
    data.load(-1)
    for rollout in (0, 1):
        generate_rollout(args, rollout, data)
        data.save(rollout)
    assert pending(ledger) == 2


@pytest.mark.parametrize(("saved", "loaded", "again"), [(None, -1, "abcd"), (0, 0, "cd")])
def test_after_an_end_the_groups_of_lost_weights_come_again_and_those_of_saved_ones_do_not(
    ledger, args, source, tmp_path, saved, loaded, again
) -> None:
    publish(ledger, *"abcd")
    first = source()
    first.load(-1)
    assert [names(generate_rollout(args, rollout, first)) for rollout in (0, 1)] == ["ab", "cd"]
    if saved is not None:
        first.save(saved)
    first.feed.close()
    second = source()
    second.load(loaded)  # the checkpoint that slime has found
    came = [names(generate_rollout(args, rollout, second)) for rollout in range(loaded + 1, 2)]
    assert sorted("".join(came)) == [*again]
    lines = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    trained = [name for line in lines for name in line["groups"]]
    assert len(trained) == len(set(trained)) == 4


def test_a_checkpoint_that_was_not_acknowledged_is_recognised(ledger, args, source) -> None:
    publish(ledger, *"abcd")
    first = source()
    first.load(-1)
    generate_rollout(args, 0, first)
    first.feed.close()  # killed when the model of rollout 0 was saved, before save(0)
    second = source()
    second.load(0)
    assert sorted(names(generate_rollout(args, 1, second))) == ["c", "d"]
    assert second.feed.take(1, timeout_s=0.5) == []
    assert second.feed.counts.recognised == 2


def test_age_counts_from_the_runs_version_since_servers_count_anew_after_a_restart(
    ledger, args, source, monkeypatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_TRAINER_MAX_LAG", "1")
    data = source()
    data.load(-1)
    for name in "ab":
        group = group_of(name, version="1").group
        members = [
            each.model_copy(update={"policy_begun": 7 if name == "a" else 9})
            for each in group.members
        ]
        publish_group(ledger, group.model_copy(update={"members": tuple(members)}))
    args.rollout_batch_size = 1
    assert names(generate_rollout(args, 9, data)) == "b"
    assert (version_of(ledger, "run"), data.feed.counts.dropped) == (9, 1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rollout_global_dataset": False}, "--disable-rollout-global-dataset"),
        ({"save_interval": None}, "--save-interval"),
        ({"num_rollout": None}, "--num-rollout"),
        ({"global_batch_size": 3}, "--global-batch-size divide a rollout's 8"),
        ({"advantage_estimator": "new"}, "--advantage-estimator new is not known here"),
    ],
)
def test_options_with_which_groups_would_be_lost_are_refused(source, options, problem) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        source(**options)


def test_a_run_must_be_named_and_evaluations_are_not_the_queues(source, args, monkeypatch) -> None:
    monkeypatch.delenv("HERMES_QUEUE_TRAINER_RUN")
    with pytest.raises(ConfigurationError, match="set HERMES_QUEUE_TRAINER_RUN"):
        source()
    with pytest.raises(ConfigurationError, match="--eval-function-path"):
        generate_rollout(args, 0, None, evaluation=True)


def test_ignored_logprobs_are_warned_of(source, caplog) -> None:
    source(use_tis=False)
    assert "slime will ignore the sampler's logprobs" in caplog.text


def test_rewards_are_relative_to_their_group_with_one_vote_for_each_trajectory(args) -> None:
    with slime_types():
        from slime.utils.types import Sample

        votes = [(0, 0, 1.0), (0, 0, 1.0), (0, 0, 1.0), (0, 1, 0.0), (1, 2, 5.0), (1, 3, 7.0)]
        samples = [Sample(group_index=g, rollout_id=r, reward=score) for g, r, score in votes]
    raw, rewards = normalize_rewards(args, samples)
    assert raw == [score for _, _, score in votes]
    half, one = 0.5 / (math.sqrt(0.5) + 1e-6), 1.0 / (math.sqrt(2) + 1e-6)
    assert rewards == pytest.approx([half, half, half, -half, -one, one])
    args.grpo_std_normalization = False
    assert normalize_rewards(args, samples)[1] == [0.5, 0.5, 0.5, -0.5, -1.0, 1.0]
    args.advantage_estimator = "ppo"
    assert normalize_rewards(args, samples) == (raw, raw)


@pytest.mark.parametrize("estimator", NORMALIZATION)
def test_rewards_are_normalised_for_the_estimators_that_slime_normalises(args, estimator) -> None:
    with slime_types():
        from slime.utils.types import Sample

        scores = [1.0, 0.0, 1.0, 1.0]
        samples = [Sample(group_index=0, rollout_id=n, reward=s) for n, s in enumerate(scores)]
    args.advantage_estimator = estimator
    expected = {
        "raw": scores,
        "centred": [0.25, -0.75, 0.25, 0.25],
        "scaled": [each / (0.5 + 1e-6) for each in (0.25, -0.75, 0.25, 0.25)],
    }
    rewards = normalize_rewards(args, samples)[1]
    assert rewards == pytest.approx(expected[normalization()[estimator]])
