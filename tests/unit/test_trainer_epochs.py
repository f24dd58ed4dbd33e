"""Further passes over recorded groups: each group once per pass in the weights that survive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from records import make_job, make_record

from hermes_queue.errors import ConfigurationError
from hermes_queue.models import TrajectoryGroup
from hermes_queue.trainers.journal import StepJournal
from hermes_queue.trainers.rows import RowRefused, rows_of
from hermes_queue.trainers.sources.epochs import Epochs

OpenEpochs = Callable[..., Epochs]


def group(name: str, *scores: float) -> TrajectoryGroup:
    given = scores or (0.0, 1.0)
    jobs = [make_job("run", name, index, len(given)) for index in range(len(given))]
    records = [make_record(job, score) for job, score in zip(jobs, given, strict=True)]
    return TrajectoryGroup.model_construct(
        run_id="run",
        group_id=jobs[0].group_id,
        env="gsm8k",
        instance_id=name,
        size=len(given),
        complete=True,
        std=max(given) - min(given),
        members=tuple(records),
    )


RECORDED = [group(name) for name in "abcd"]


@pytest.fixture
def epochs(tmp_path: Path) -> Iterator[OpenEpochs]:
    with ExitStack() as stack:

        def opened(groups=RECORDED, last=2, **options) -> Epochs:
            given = {"directory": tmp_path, "group_size": 2, "last": last, **options}
            return stack.enter_context(Epochs(lambda: iter(groups), **given))

        yield opened


def names(groups) -> str:
    return "".join(each.instance_id for each in groups)


def train(trainer: Epochs, steps: range, groups: int = 2) -> list[str]:
    seen = []
    for step in steps:
        taken = trainer.take(groups)
        trainer.trained(step, taken)
        seen.append(f"{trainer.epoch}{names(taken)}")
    return seen


def test_every_pass_has_every_group_once_and_the_journal_tells_them_apart(epochs, tmp_path):
    trainer = epochs()
    assert train(trainer, range(1, 6)) == ["1ab", "1cd", "2ab", "2cd", "2"]
    trainer.close()
    journal = StepJournal(tmp_path)
    assert sorted(journal.steps) == sorted(
        [each.group_id for each in RECORDED] + [f"{each.group_id}@2" for each in RECORDED]
    )
    journal.close()


@pytest.mark.parametrize(("saved", "then"), [(1, "1cd"), (2, "2ab"), (3, "2cd"), (None, "1ab")])
def test_a_trainer_that_goes_on_trains_what_the_weights_do_not_hold(epochs, saved, then):
    first = epochs()
    train(first, range(1, 4))
    first.close()
    again = epochs()
    with pytest.raises(ConfigurationError, match=r"call resume\(\)"):
        again.take(1)
    assert again.resume(saved) == 2 * (saved or 0)
    assert train(again, range((saved or 0) + 1, (saved or 0) + 2)) == [then]


def test_what_was_taken_in_the_first_pass_and_never_trained_comes_before_the_second(epochs):
    first = epochs()
    kept = first.take(4)
    first.trained(1, kept[:3])
    first.trained(2, first.take(3)[:2])
    first.saved(2)
    first.close()
    again = epochs()
    again.resume(2)
    assert train(again, range(3, 6), groups=4) == ["1d", "2cd", "2"]


def test_a_batch_never_has_groups_of_two_passes(epochs):
    assert train(epochs(), range(1, 5), groups=3) == ["1abc", "1d", "2abc", "2d"]


def test_a_pass_after_a_live_one_begins_with_two(epochs, tmp_path):
    live = StepJournal(tmp_path)
    live.add(1, [each.group_id for each in RECORDED])
    live.close()
    trainer = epochs(first=2)
    assert trainer.resume(1) == 4
    assert train(trainer, range(2, 4)) == ["2ab", "2cd"]


def test_a_shuffled_pass_has_every_group_and_is_the_same_again(epochs, tmp_path):
    many = [group(f"{n:02}") for n in range(20)]
    orders = []
    for directory in ("x", "y"):
        trainer = epochs(many, shuffle=8, directory=tmp_path / directory)
        first = trainer.take(20)
        trainer.trained(1, first)
        orders.append([names(first), names(trainer.take(20))])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1] != names(many)
    assert all(len(each) == 40 for each in orders[0])


def test_a_group_that_comes_again_before_it_was_trained_is_an_error(epochs):
    trainer = epochs()
    trainer.take(4)
    with pytest.raises(ConfigurationError, match="before it was trained"):
        trainer.take(1)


def test_unfit_groups_are_skipped_and_counted(epochs):
    mixed = [group("a", 1.0, 1.0), group("b", 0.0, 1.0, 1.0), group("c"), group("d")]

    def check(each):
        if each.instance_id == "c":
            raise RowRefused("too_long", "")
        rows_of(each)

    trainer = epochs(mixed, last=1, check=check)
    assert names(trainer.take(4)) == "d"
    assert trainer.counts.refused == {"group_size": 1, "too_long": 1}
    trainer.refuse(mixed[3], RowRefused("no_tokens", ""))
    with pytest.raises(ValueError, match="was not taken here"):
        trainer.trained(1, [mixed[3]])


def test_a_step_before_the_checkpoint_is_refused(epochs):
    trainer = epochs()
    taken = trainer.take(2)
    trainer.saved(3)
    with pytest.raises(ValueError, match="not after the checkpoint of step 3"):
        trainer.trained(3, taken)
    assert trainer.published(5) == 5
