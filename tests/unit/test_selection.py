"""Which trajectories become rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from records import make_group, make_job, make_record

from hermes_queue.errors import ConfigurationError, InputError
from hermes_queue.models import ScoredTrajectory, TokenSequence, TrajectoryGroup
from hermes_queue.sinks.selection import Decontamination, Filters, Selection


def group(*scores: float | None, instance: str = "i", run: str = "run", **more) -> TrajectoryGroup:
    members = tuple(
        make_record(make_job(run, instance, i, len(scores)), score).model_copy(update=more)
        for i, score in enumerate(scores)
    )
    return make_group(*members, complete=None not in scores, mean=None, std=None)


@pytest.mark.parametrize(
    ("filters", "expected", "refused"),
    [
        (Filters(), [0, 1], {"no score": 1}),
        (Filters(failed=True), [0, 1, 2], {}),
        (Filters(failed=True, min_score=0.5), [0], {"score too low": 2}),
        (Filters(max_score=0.5), [1], {"score too high": 1, "no score": 1}),
        (Filters(complete=True), [], {"incomplete group": 3}),
        (Filters(mixed=True), [0, 1], {"no score": 1}),
        (Filters(max_per_instance=1), [0], {"no score": 1, "enough of this instance": 1}),
        (Filters(stop_reasons=("submitted",)), [], {"no score": 1, "stop reason": 2}),
    ],
    ids=str,
)
def test_filters_choose_and_count(filters, expected, refused) -> None:
    selection = Selection(filters, {})
    chosen = selection.choose(group(1.0, 0.0, None))
    assert [record.sample_index for record in chosen] == expected
    assert selection.refused == refused


def test_labels_of_people_choose() -> None:
    labels = {make_job("run", "i", 0, 3).trajectory_id: "fine"}
    labels[make_job("run", "i", 1, 3).trajectory_id] = "cheating"
    selection = Selection(Filters(reviewed=("fine", "unsure")), {}, label_of=labels.get)
    assert [each.sample_index for each in selection.choose(group(1.0, 1.0, 1.0))] == [0]
    assert selection.refused == {"label": 2}
    assert Selection(Filters(reviewed=("fine",)), {}).choose(group(1.0)) == []


@pytest.mark.parametrize(
    "report",
    [{"reason": "canary"}, {"reason": "cut_short"}, {"dropped_count": 1}, {"flags": ["network"]}],
    ids=str,
)
def test_attempts_to_get_around_the_grading_are_kept_out(report) -> None:
    selection = Selection(Filters(clean=True), {})
    assert selection.choose(group(1.0, report=report)) == []
    clean = {"reason": "resolved", "dropped_count": 0, "dropped": []}
    assert len(selection.choose(group(1.0, report=clean))) == 1
    assert selection.refused == {"tampered": 1}


@pytest.mark.parametrize(
    "sequences",
    [
        None,
        (),
        (TokenSequence(ids=(1, 2), loss_mask=(0, 0), logprobs=(0.0, 0.0)),),
        (TokenSequence(ids=(1, 2), loss_mask=(0, 1), logprobs=(0.0,)),),
    ],
    ids=["none", "empty", "nothing to train", "lengths differ"],
)
def test_where_tokens_are_demanded_a_trajectory_without_is_refused_and_counted(sequences) -> None:
    selection = Selection(Filters(tokens=True), {})
    assert selection.choose(group(1.0, sequences=sequences)) == []
    assert len(selection.choose(group(1.0))) == 1
    assert selection.refused == {"no tokens": 1}


def test_a_score_that_is_no_number_is_no_record() -> None:
    fields = make_record(make_job()).model_dump()
    for score in (float("nan"), float("inf")):
        with pytest.raises(ValidationError, match="finite"):
            ScoredTrajectory.model_validate({**fields, "score": score})


def test_the_bound_of_an_instance_counts_what_the_dataset_holds_from_earlier_lives() -> None:
    earlier = {"other.run.0": "i", "other.run.1": "i"}
    selection = Selection(Filters(max_per_instance=3), earlier)
    assert [r.sample_index for r in selection.choose(group(1.0, 1.0, 1.0))] == [0]


def test_a_group_delivered_again_changes_nothing() -> None:
    held: dict[str, str] = {}
    selection = Selection(Filters(max_per_instance=2), held)
    first = selection.choose(group(1.0, 1.0, 1.0))
    held.update((record.trajectory_id, record.instance_id) for record in first)
    assert selection.choose(group(1.0, 1.0, 1.0)) == []


def test_listed_instances_and_repositories_are_excluded(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# test set\ndjango/django\n\nmy-instance\nowner/with-dash\n")
    exclude = Decontamination(path)
    assert len(exclude) == 3
    for name in ("django__django-11099", "My-Instance", "owner__with-dash.1a2b.func_pm__x9"):
        assert exclude.excludes(name), name
    for name in ("django__channels-1", "my-instance-2", "owner__with.1a2b", "other"):
        assert not exclude.excludes(name), name
    selection = Selection(Filters(), {}, exclude)
    assert selection.choose(group(1.0, instance="django__django-1")) == []
    assert selection.refused == {"decontaminated": 1}


def test_a_list_that_cannot_be_read_or_lists_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Decontamination(tmp_path / "missing")
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(InputError, match="lists no instance"):
        Decontamination(tmp_path / "empty")


def test_a_list_is_understood_however_it_was_made(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(
        b"\xef\xbb\xbfdjango__django-1\r\nhttps://github.com/Owner/Name.git\r\n"
        b"git@github.com:a/b.git\nsympy/sympy   # all of it\nNodeBB/NodeBB\n"
    )
    exclude = Decontamination(path)
    for name in (
        *("django__django-1", "owner__name-7", "owner/name#12", "owner/name-12", "a__b.1f.func__x"),
        *("sympy__sympy-1", "instance_NodeBB__NodeBB-0499-vnan"),
    ):
        assert exclude.excludes(name), name
    for name in ("django__django-2", "owner__names-7", "owner/names-12", "instance_a", "a:b/c"):
        assert not exclude.excludes(name), name


def test_a_dataset_that_holds_what_a_list_excludes_is_not_continued_with_it(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("django/django\n")
    exclude = Decontamination(path)
    Selection(Filters(), {"t1": "flask__flask-1"}, exclude)
    with pytest.raises(ConfigurationError, match=r"holds 1 row.*django__django-1"):
        Selection(Filters(), {"t1": "flask__flask-1", "t2": "django__django-1"}, exclude)
