"""The order in which a trainer gets groups, and their age."""

from __future__ import annotations

from records import make_group, make_job, make_record

from hermes_queue.models import TrajectoryGroup
from hermes_queue.trainers.sources.window import Age, Window


def age(version: int | None = 0, enqueued_s: float = 0.0) -> Age:
    return Age(version, version is not None, enqueued_s)


def order(window: Window[str]) -> str:
    return "".join(window.take().item for _ in range(len(window)))


def group(*versions: str | None, begun: int | None = None) -> TrajectoryGroup:
    members = tuple(
        make_record(make_job(sample=n, size=len(versions)), policy=version, policy_begun=begun)
        for n, version in enumerate(versions)
    )
    return make_group(*members, created=12.5, finished=20.0)


def test_without_a_window_groups_keep_the_order_in_which_they_finished():
    window = Window[str](0)
    for name, version in (("a", 5), ("b", 3), ("c", None)):
        window.add(name, age(version))
    assert order(window) == "abc"


def test_a_window_hands_out_the_oldest_policy_first_and_unknown_ones_before_it():
    window = Window[str](3)
    for name, version in (("a", 5), ("b", 3), ("c", None), ("d", 3)):
        window.add(name, age(version))
    assert order(window) == "cbda"


def test_of_one_policy_the_group_that_was_enqueued_first_is_next():
    window = Window[str](3)
    for name, enqueued_s in (("easy", 30.0), ("middle", 20.0), ("hard", 10.0)):
        window.add(name, age(1, enqueued_s))
    assert order(window) == "hardmiddleeasy"


def test_a_hard_group_is_neither_starved_nor_always_last():
    window = Window[str](4)
    handed_out = []
    for n in range(20):
        window.add(f"e{n}", age(n // 4, float(n)))
        if n == 6:
            window.add("hard", age(0, 0.5))
        if len(window) >= window.size:
            handed_out.append(window.take().item)
    assert handed_out[:5] == ["e0", "e1", "e2", "hard", "e3"]


def test_what_is_put_back_has_its_old_place():
    window = Window[str](0)
    for name in "abc":
        window.add(name, age())
    first = window.take()
    window.add("d", age())
    window.put_back(first)
    assert order(window) == "abcd"


def test_the_age_of_a_group_is_that_of_its_oldest_member():
    known = Age.of(group("step-7", "step-5"))
    assert (known.version, known.certain, known.enqueued_s) == (5, True, 12.5)
    assert (known.lag(8), known.lag(4)) == (3, 0)


def test_members_without_a_version_count_from_the_beginning_of_their_attempt():
    assert Age.of(group("7", None, begun=6)).version == 6


def test_the_version_at_the_beginning_of_an_attempt_may_count_alone():
    begun = Age.of(group("step-1", "step-2", begun=6), begun=True)
    assert (begun.version, begun.certain) == (6, True)


def test_a_version_that_nobody_knows_has_no_lag():
    unknown = Age.of(group(None, None))
    assert (unknown.version, unknown.certain, unknown.lag(3)) == (None, False, None)
    assert age(3).lag(None) is None
    half = Age.of(group("7", None))
    assert (half.version, half.certain, half.lag(9)) == (7, False, 2)
