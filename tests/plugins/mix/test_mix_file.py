"""The file of a mix: what is wrong with it is said with its field and the fix."""

from __future__ import annotations

import pytest
from mixes import Drawing, write_mix, write_rows

from hermes_plugins.mix.document import read_mix
from hermes_plugins.mix.store import differences, fingerprint
from hermes_queue.errors import ConfigurationError, InputError

GOOD = 'name = "m"\n[sources.a]\nproducer = "gsm8k"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "is not TOML"),
        ("[sources.a]\nproducer = 'gsm8k'\n", 'name: is missing: add name = "my-mix"'),
        ("name = 'm'\n", "sources: is missing: add a table [sources.NAME]"),
        ("name = 'a/b'\n" + GOOD[11:], "name: use letters"),
        ("name = 'm'\n[sources.'x.y']\nproducer = 'gsm8k'\n", "sources.x.y: use letters"),
        ("name = 'm'\n[sources.a]\n", 'sources.a.producer: is missing: add producer = "gsm8k"'),
        (GOOD + "wieght = 2\n", "sources.a.wieght: is no setting here; there are epochs, flags"),
        (GOOD + "wieght = 2\n", "flags of the producer belong below flags"),
        (GOOD + "weight = -1\n", "sources.a.weight: use 0 (nothing of it), or 1e-06 to 1e+06"),
        (GOOD + "weight = nan\n", "sources.a.weight"),
        ("budgets.tokens = inf\n" + GOOD, "budgets.tokens"),
        ("max_ahead = 1000001\n" + GOOD, "max_ahead"),
        (GOOD + "epochs = 0\n", "sources.a.epochs"),
        (GOOD + "quota.items = 1.5\n", "sources.a.quota.items"),
        (GOOD + "quota.rows = 1\n", "sources.a.quota.rows: is no setting here"),
        (GOOD + "sampler = 'best'\n", "kind 'best': there are shuffle, in_order, uniform"),
        (GOOD + "sampler = 3\n", "sources.a.sampler"),
        (GOOD + "sampler = { kind = 'pass_rate', band = [0.9, 0.1] }\n", "lower first"),
        (GOOD + "sampler = { kind = 'pass_rate', explore = 0 }\n", "allow a share"),
        (GOOD + "sampler = 'uniform'\nepochs = 2\n", "sampler uniform has none"),
        ("backlog = { low = 9, high = 3 }\n" + GOOD, "low = 9 must be below high = 3"),
        ("seed = 'x'\n" + GOOD, "seed: "),
        ("slots.max_running = 0\n" + GOOD, "slots: max_running 0: use a whole number from 1 on"),
    ],
)
def test_a_wrong_file_names_the_field_and_the_fix(tmp_path, text, said):
    file = tmp_path / "mix.toml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_mix(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"mix\.toml: cannot be read"):
        read_mix(tmp_path / "mix.toml")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("flags.itmes = 3", "sources.a: flags: unrecognized arguments: --itmes=3"),
        ("flags.group_size = 0", "sources.a: flags: argument --group-size: must be 1 to 1024"),
        ("flags.run_id = 'x'", "sources.a: flags.run_id: cannot be set here: the name of the mix"),
        ("flags.cycle = true", "say how often with epochs"),
        ("flags.skip-solved = true", "flags.skip_solved: cannot be set here: rows are chosen by"),
        ("flags.agent = 'human'", "a run has no terminal"),
        ("flags.dataset = 'none.jsonl'", "sources.a: none.jsonl: no such file"),
        ("flags.agent = 'openai'", "sources.a: --agent openai: name the model"),
    ],
)
def test_a_wrong_flag_names_the_source(tmp_path, table, said):
    with pytest.raises(ConfigurationError) as caught:
        Drawing(write_mix(tmp_path, {"a": table}))
    assert said in str(caught.value)


def test_an_unknown_producer_is_named(tmp_path):
    file = write_mix(tmp_path, {"a": ""})
    file.write_text(file.read_text().replace('"gsm8k"', '"gsm9k"'))
    with pytest.raises(ConfigurationError, match=r"sources\.a: .*gsm9k"):
        Drawing(file)


def test_two_rows_with_one_id_are_refused(tmp_path):
    rows = tmp_path / "a.jsonl"
    write_rows(rows, [1])
    rows.write_text(rows.read_text() + rows.read_text().replace("1?", "2?"))
    with pytest.raises(InputError, match=r"a\.jsonl:2: instance_id 'r1' is also the id"):
        Drawing(write_mix(tmp_path, {"a": ""}))


def test_flags_of_all_sources_give_way_to_those_of_one(tmp_path):
    write_rows(tmp_path / "a.jsonl", range(3))
    table = f"flags = {{ group_size = 3, dataset = '{tmp_path}/a.jsonl', sampling = {{ n = 1 }} }}"
    file = write_mix(tmp_path, {"a": table, "b": ""})
    file.write_text(file.read_text().replace('agent = "nop"', 'agent = "nop"\ngroup-size = 2'))
    mix = Drawing(file)
    assert {name: source.group_jobs for name, source in mix.sources.items()} == {"a": 3, "b": 2}
    assert mix.sources["a"].plan.agent.sampling == {"n": 1}
    mix.close()


def prints(tmp_path, *changes):
    found = []
    for rows in changes:
        write_rows(tmp_path / "a.jsonl", **rows)
        mix = Drawing(write_mix(tmp_path, {"a": ""}))
        found.append(fingerprint(mix.sources["a"].items))
        mix.close()
    return found


def test_what_changed_in_the_rows_between_two_starts_is_counted(tmp_path):
    before, after = prints(tmp_path, {"numbers": range(10)}, {"numbers": [*range(2, 10), 20]})
    assert differences(before, after) == "rows: 1 added, 2 removed, 0 changed (10 before, 9 now)"


def test_rows_with_another_content_count_as_changed(tmp_path):
    before, after = prints(
        tmp_path, {"numbers": range(3)}, {"numbers": range(3), "answer": "#### 7"}
    )
    assert differences(before, after) == "rows: 0 added, 0 removed, 3 changed (3 before, 3 now)"


def test_rows_in_another_order_are_the_same(tmp_path):
    before, after = prints(tmp_path, {"numbers": range(9)}, {"numbers": range(8, -1, -1)})
    assert differences(before, after) == ""


@pytest.mark.parametrize("junk", [b"", b"x", b"9 9 9", b"-1 0 ", b"99999999 0 "])
def test_a_fingerprint_that_is_none_is_no_reason_to_stop(tmp_path, junk):
    [now] = prints(tmp_path, {"numbers": range(3)})
    assert differences(junk, now)
