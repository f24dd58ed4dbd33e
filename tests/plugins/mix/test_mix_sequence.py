"""Which groups a mix draws, in which order."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest
from mixes import Drawing, Rates, write_mix, write_rows


def drawing(tmp_path, sources, **more):
    state, rates = more.pop("state", None), more.pop("rates", None)
    return closing(Drawing(write_mix(tmp_path, sources, **more), state, rates))


def test_sources_share_groups_by_weight_over_every_stretch(tmp_path):
    with drawing(tmp_path, {"a": "weight = 3", "b": "weight = 1"}) as mix:
        names = mix.names(400)
    for start in range(0, 400, 20):
        assert Counter(names[start : start + 20]) == {"a": 15, "b": 5}


def test_weights_may_divide_trajectories_in_place_of_groups(tmp_path):
    flags = "flags.group_size = {}\nflags.dataset = '{}'"
    for name in "ab":
        write_rows(tmp_path / f"{name}.jsonl", range(10))
    sources = {n: flags.format(s, tmp_path / f"{n}.jsonl") for n, s in (("a", 4), ("b", 1))}
    with drawing(tmp_path, sources, head='share = "trajectories"') as mix:
        assert Counter(mix.names(100)) == {"a": 20, "b": 80}


def test_every_epoch_has_every_row_once_in_an_order_of_its_own(tmp_path):
    with drawing(tmp_path, {"a": ""}) as mix:
        epochs = [mix.rows(10) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(epochs[0])] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_another_seed_gives_another_order(tmp_path):
    orders = set()
    for seed in range(3):
        with drawing(tmp_path, {"a": ""}, head=f"seed = {seed}") as mix:
            orders.add(tuple(mix.rows(10)))
    assert len(orders) == 3


def test_rows_in_order_come_as_in_their_file(tmp_path):
    with drawing(tmp_path, {"a": 'sampler = "in_order"'}) as mix:
        assert mix.rows(12) == [f"a/r{n % 10}" for n in range(12)]


def test_uniform_rows_come_with_chance_alone(tmp_path):
    with drawing(tmp_path, {"a": 'sampler = "uniform"'}) as mix:
        groups = mix.draw(500)
    counts = Counter(group.jobs[0].instance_id for group in groups)
    assert len(counts) == 10
    assert min(counts.values()) > 25
    assert len({group.jobs[0].group_id for group in groups}) == 500


def test_a_mix_ends_when_all_epochs_and_quotas_are_done(tmp_path):
    sources = {"a": "epochs = 2", "b": "quota.items = 3", "c": "quota.trajectories = 7"}
    with drawing(tmp_path, sources) as mix:
        assert Counter(mix.names(1000)) == {"a": 20, "b": 3, "c": 7}
        assert mix.blend.over


def test_a_quota_of_trajectories_begins_no_group_that_does_not_fit(tmp_path):
    write_rows(tmp_path / "a.jsonl", range(10))
    table = f"quota.trajectories = 7\nflags = {{ group_size = 4, dataset = '{tmp_path}/a.jsonl' }}"
    with drawing(tmp_path, {"a": table}) as mix:
        assert sum(len(group.jobs) for group in mix.draw(10)) == 4


def test_a_changed_weight_counts_from_then_on(tmp_path):
    with drawing(tmp_path, {"a": "", "b": ""}) as mix:
        mix.draw(50)
        mix.set(a__weight="4")
        assert Counter(mix.names(50)) == {"a": 40, "b": 10}


def test_a_source_that_was_nearly_off_need_not_wait_when_its_weight_rises(tmp_path):
    with drawing(tmp_path, {"a": "", "b": "weight = 0.0001"}) as mix:
        mix.draw(50)
        mix.set(b__weight="1")
        assert "b" in mix.names(3)


def test_a_paused_source_gives_nothing_and_catches_nothing_up(tmp_path):
    with drawing(tmp_path, {"a": "", "b": ""}) as mix:
        mix.set(b__pause="true")
        assert set(mix.names(40)) == {"a"}
        mix.set(b__pause="false")
        assert Counter(mix.names(20)) == {"a": 10, "b": 10}


def test_a_mix_of_paused_sources_waits_and_is_not_over(tmp_path):
    with drawing(tmp_path, {"a": "pause = true"}) as mix:
        assert mix.draw(1) == []
        assert not mix.blend.over


@pytest.mark.parametrize("sampler", ["shuffle", "in_order", "uniform", "pass_rate"])
def test_a_mix_goes_on_from_any_state_as_if_it_had_never_ended(tmp_path, sampler):
    sources = {"a": f'sampler = "{sampler}"\nweight = 2', "b": "epochs = 2"}
    with drawing(tmp_path, sources) as mix:
        whole = [group.jobs for group in mix.draw(40)]
    found, state = [], None
    for most in (1, 2, 7, 13, 17):
        with drawing(tmp_path, sources, state=state) as mix:
            found += [group.jobs for group in mix.draw(most)]
            state = mix.saved()
    assert found == whole


@pytest.mark.parametrize("taken", [0, 3, 9])
def test_rows_that_are_added_and_removed_in_an_epoch_change_nothing_else(tmp_path, taken):
    with drawing(tmp_path, {"a": "epochs = 1"}) as mix:
        first = mix.rows(taken)
        state = mix.saved()
        rest = mix.rows(10)
    write_rows(tmp_path / "a.jsonl", [*range(3, 10), *range(20, 23)])
    with drawing(tmp_path, {"a": "epochs = 1"}, state=state) as mix:
        found = mix.rows(20)
    gone, new = {"a/r0", "a/r1", "a/r2"}, {"a/r20", "a/r21", "a/r22"}
    assert [row for row in found if row not in new] == [row for row in rest if row not in gone]
    assert not set(first) & set(found)


def test_rows_in_order_go_on_behind_the_last_one_when_others_were_removed_before_it(tmp_path):
    with drawing(tmp_path, {"a": 'sampler = "in_order"'}) as mix:
        mix.draw(5)
        state = mix.saved()
    write_rows(tmp_path / "a.jsonl", [2, 3, 4, 5, 6])
    with drawing(tmp_path, {"a": 'sampler = "in_order"'}, state=state) as mix:
        assert mix.rows(2) == ["a/r5", "a/r6"]


BAND = (
    """sampler = { kind = "pass_rate", band = [0.2, 0.8], explore = 1, outside = 0, revisit = 0 }"""
)
SOLVED, IMPOSSIBLE, GOOD, RARE = (8, 8), (8, 0), (8, 4), (8, 1)


def known(tmp_path, table, rates, **more):
    """A mix whose rows have these pass rates."""
    memory = Rates(rates)
    mix = Drawing(write_mix(tmp_path, {"a": table}, **more), rates=memory)
    memory.learn(mix)
    return closing(mix)


def test_solved_and_impossible_rows_are_skipped(tmp_path):
    rates = {"r0": SOLVED, "r1": IMPOSSIBLE, "r2": GOOD, "r3": RARE}
    with known(tmp_path, BAND, rates) as mix:
        rows = set(mix.rows(70))
    assert rows == {"a/r2"} | {f"a/r{n}" for n in range(4, 10)}


def test_unknown_rows_are_explored_with_a_share_of_each_epoch(tmp_path):
    rates = {f"r{n}": GOOD for n in range(500)}
    table = BAND.replace("explore = 1", "explore = 0.3")
    with known(tmp_path, table, rates, rows=1000) as mix:
        counts = Counter(int(row[3:]) < 500 for row in mix.rows(2600))
    assert counts[True] / counts[False] == pytest.approx(1 / 0.3, rel=0.15)


def test_rows_under_which_workers_died_are_left_out(tmp_path):
    with known(tmp_path, BAND, {"r0": (0, 0, True), "r1": (8, 4, True), "r2": (8, 4)}) as mix:
        assert set(mix.rows(40)) == {f"a/r{n}" for n in range(2, 10)}
        assert mix.blend.state.sources["a"].looked == {"poison": 2, "band": 1, "unknown": 7}


def test_a_row_with_few_attempts_is_unknown(tmp_path):
    with known(tmp_path, BAND, {"r0": (3, 3), "r1": (4, 4)}) as mix:
        rows = set(mix.rows(30))
    assert "a/r0" in rows
    assert "a/r1" not in rows


def test_a_source_without_a_row_worth_it_leaves_the_others_their_turn_and_is_looked_at_again(
    tmp_path,
):
    memory = Rates({f"r{n}": SOLVED for n in range(10)})
    file = write_mix(tmp_path, {"a": BAND, "b": "epochs = 1"})
    write_rows(tmp_path / "b.jsonl", range(20, 25))
    with closing(Drawing(file, rates=memory)) as mix:
        memory.learn(mix)
        assert set(mix.names(100)) == {"b"}
        assert mix.blend.standing("a") == "nothing to learn"
        assert not mix.blend.over
        assert mix.blend.state.sources["a"].epoch == 1
        memory.by_hash.clear()
        assert mix.names(3) == []
        mix.now += 31
        assert mix.names(3) == ["a"] * 3


def test_a_removed_row_of_a_chosen_page_is_passed_over(tmp_path):
    with known(tmp_path, BAND, {}) as mix:
        first = mix.rows(2)
        state = mix.saved()
    write_rows(tmp_path / "a.jsonl", range(5))
    with drawing(tmp_path, {"a": BAND}, state=state) as mix:
        rest = mix.rows(5 - sum(int(row[3:]) < 5 for row in first))
    assert {*first, *rest} >= {f"a/r{n}" for n in range(5)}
