"""Which rows a run uses, and how a bad one is named."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import sums_env
from pydantic import BaseModel

from envs.base import load_env
from hermes_queue.bodies import codec
from hermes_queue.errors import ConfigurationError, InputError, PayloadTooLarge
from producers.base import Producer
from producers.prompts import PRODUCER as PROMPTS
from producers.run.dataset import open_dataset
from producers.run.options import parse
from producers.run.plan import make_plan
from producers.run.selection import SelectedItems, select
from producers.swe_smith import PRODUCER as SWE_SMITH


def skip_reason(row: dict[str, Any], _: object) -> str | None:
    return "question is empty" if row.get("question") == "" else None


PRODUCER = Producer(name="sums", env="sums_env:ENV", description="Sums.", skip_reason=skip_reason)


def row(number: int, **fields: Any) -> dict[str, Any]:
    return {"instance_id": f"s{number}", "question": f"{number}+1?", "answer": number + 1} | fields


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def chosen(path: Path, rows: list[dict[str, Any]], *flags: str) -> SelectedItems:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    arguments = parse(PRODUCER, ["--dataset", str(path), *flags])
    return select(PRODUCER, sums_env.ENV, open_dataset(str(path), bundled=path), arguments)


def ids(selection: SelectedItems) -> list[str]:
    return [item.instance_id for item in selection.items]


ROWS = [row(n) for n in range(30)]


def test_ten_items_are_taken_by_default(path: Path) -> None:
    assert ids(chosen(path, ROWS)) == [f"s{n}" for n in range(10)]


def test_items_and_offset_cut_a_slice(path: Path) -> None:
    assert ids(chosen(path, ROWS, "--items", "2", "--offset", "5")) == ["s5", "s6"]


def test_all_items_are_taken_on_request(path: Path) -> None:
    assert len(chosen(path, ROWS, "--items", "all").items) == 30


def test_a_short_dataset_is_used_once_and_noted(path: Path) -> None:
    selection = chosen(path, ROWS[:3], "--items", "5")
    assert ids(selection) == ["s0", "s1", "s2"]
    assert "only 3 usable rows" in selection.notes[0]


def test_a_cycle_repeats_rows_under_keys_of_their_own(path: Path) -> None:
    selection = chosen(path, ROWS[:2], "--items", "5", "--cycle")
    assert [item.key for item in selection.items] == ["s0", "s1", "s0#2", "s1#2", "s0#3"]
    assert ids(selection) == ["s0", "s1", "s0", "s1", "s0"]


def test_an_endless_cycle_is_refused(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--cycle never ends"):
        chosen(path, ROWS, "--items", "all", "--cycle")


def test_named_instances_are_found_and_bad_rows_beside_them_ignored(path: Path) -> None:
    rows = [row(0, answer="no number"), row(1), {"question": 5}, row(3), row(4)]
    assert ids(chosen(path, rows, "--instance-id", "s3", "--instance-id", "s1")) == ["s1", "s3"]


def test_a_named_instance_that_is_not_there_is_an_error(path: Path) -> None:
    with pytest.raises(InputError, match=r"--instance-id nope: not in rows\.jsonl"):
        chosen(path, ROWS, "--instance-id", "s1", "--instance-id", "nope")


def test_rows_that_are_no_tasks_are_counted_and_replaced(path: Path) -> None:
    rows = [row(0, question=""), row(1), row(2, question=""), row(3), row(4)]
    selection = chosen(path, rows, "--items", "2")
    assert ids(selection) == ["s1", "s3"]
    assert selection.skipped == {"question is empty": 2}


def test_nothing_left_after_skipping_is_an_error_with_the_reasons(path: Path) -> None:
    said = r"skipped 2 rows \(.*rows.jsonl:1, \.\.\.\): question is empty"
    with pytest.raises(InputError, match=said):
        chosen(path, [row(0, question=""), row(1, question="")])


def test_an_empty_file_is_an_error(path: Path) -> None:
    with pytest.raises(InputError, match="holds no rows"):
        chosen(path, [])


def test_a_bad_row_is_named_by_place_and_field(path: Path) -> None:
    with pytest.raises(InputError) as caught:
        chosen(path, [row(0), row(1, answer="a lot"), row(2)])
    message = str(caught.value)
    assert message.startswith(f"{path}:2: answer: ")
    assert "nothing was enqueued" in message


def test_a_row_with_half_a_character_is_named_by_place(path: Path) -> None:
    class Item(BaseModel):
        instance_id: str
        answer: Any

    env = type("Anything", (type(sums_env.ENV),), {"Item": Item})()
    path.write_text(json.dumps(row(0, answer={"text": "\ud83d"})))
    arguments = parse(PRODUCER, ["--dataset", str(path)])
    with pytest.raises(InputError, match=r":1: .*'\\ud83d', which UTF-8 cannot encode"):
        select(PRODUCER, env, open_dataset(str(path), bundled=path), arguments)


def test_a_bad_row_behind_the_selection_does_not_matter(path: Path) -> None:
    assert ids(chosen(path, [row(0), row(1, answer="a lot")], "--items", "1")) == ["s0"]


def test_unknown_columns_only_are_named_beside_the_wanted_ones(path: Path) -> None:
    with pytest.raises(InputError) as caught:
        chosen(path, [{"prompt": "1+1?", "gold": 2}])
    message = str(caught.value)
    assert "'prompt', 'gold'" in message
    assert "it needs instance_id, question, answer" in message


def test_columns_of_which_none_is_required_are_not_said_to_be_needed(path: Path) -> None:
    path.write_text('{"promt": "x"}\n')
    words = ["--dataset", str(path), "--items", "all"]
    with pytest.raises(InputError, match=r"the columns 'promt'; it takes .*messages, prompt"):
        select(PROMPTS, load_env("prompts"), PROMPTS.dataset_of(str(path)), parse(PROMPTS, words))


def test_equal_rows_count_once(path: Path) -> None:
    selection = chosen(path, [row(0), row(0), row(1)])
    assert ids(selection) == ["s0", "s1"]
    assert selection.skipped == {"repeats an earlier row": 1}


def test_two_tasks_under_one_id_are_an_error(path: Path) -> None:
    with pytest.raises(InputError, match=rf"'s0' is also the id of another row at {path}:1"):
        chosen(path, [row(0), row(0, answer=7)])


def test_a_row_over_the_cap_is_named_with_its_size(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PRODUCER_ITEM_MAX_BYTES", "2000")
    with pytest.raises(PayloadTooLarge) as caught:
        chosen(path, [row(0), row(1, question="x" * 3000)])
    message = str(caught.value)
    assert f"{path}:2" in message
    assert "'s1' has 30" in message
    assert "HERMES_QUEUE_PRODUCER_ITEM_MAX_BYTES" in message


def planned(*flags: str) -> Any:
    arguments = parse(PRODUCER, ["--run-id", "r", *flags])
    return make_plan(PRODUCER, sums_env.ENV, arguments)


def test_jobs_are_deterministic_and_carry_the_flags(path: Path) -> None:
    selection = chosen(path, ROWS, "--items", "2")
    flags = ["--group-size", "3", "--temperature", "0.5", "--sampling", "top_p=0.9"]
    flags += ["--max-turns", "7", "--tool-timeout", "9", "--priority", "2", "--lane", "eval"]
    flags += ["--observation-bytes", "4096", "--max-format-errors", "5"]
    jobs = list(planned(*flags).jobs(selection, lambda _: True))
    again = list(planned(*flags).jobs(selection, lambda _: True))
    assert jobs == again
    assert len({job.trajectory_id for job in jobs}) == 6
    assert [job.sample_index for job in jobs] == [0, 1, 2, 0, 1, 2]
    first = jobs[0]
    assert first.agent.sampling == {"temperature": 0.5, "top_p": 0.9}
    assert (first.limits.max_turns, first.limits.tool_timeout_s) == (7, 9.0)
    assert (first.limits.observation_bytes, first.limits.max_format_errors) == (4096, 5)
    assert (first.priority, first.lane, first.group_size) == (2, "eval", 3)
    assert sums_env.SumsItem.model_validate(first.item).question == "0+1?"
    assert first.producer.producer == "producers.sums"


def test_a_large_row_is_packed_once_however_often_it_is_repeated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(0, question="x" * 3000), row(1)]
    selection = chosen(path, rows, "--items", "6", "--cycle")
    plan = planned("--group-size", "4")
    read: list[bytes] = []
    unpack = codec.decompress_item
    monkeypatch.setattr(codec, "decompress_item", lambda body: read.append(body) or unpack(body))
    jobs = list(plan.jobs(selection, lambda _: True))
    large, small = (job for job in jobs[:5:4])
    [(name, packed)] = plan.items(selection.items).items()
    assert (large.item, large.item_sha256) == (None, name)
    assert codec.item_sha256(unpack(packed)) == name
    assert small.item is not None
    assert read == [selection.items[1].packed] * 3
    assert [job.sample_index for job in jobs] == [0, 1, 2, 3] * 6
    assert len({job.trajectory_id for job in jobs}) == 24


@pytest.mark.parametrize("module", ["gsm8k", "swe_smith"])
def test_a_profile_reaches_the_slots_of_every_producer_and_the_runs_lock(module: str) -> None:
    producer: Producer = importlib.import_module(f"producers.{module}").PRODUCER
    env = load_env(producer.env)
    arguments = parse(producer, ["--items", "1", "--profile", "gpu"])
    dataset = open_dataset(producer.dataset, bundled=producer.bundled)
    selection = select(producer, env, dataset, arguments)
    plan = make_plan(producer, env, arguments)
    [job] = plan.jobs(selection, lambda _: True)
    assert plan.config("d")["profile"] == "gpu"
    item = env.Item.model_validate(selection.items[0].item())
    assert env.spec(item, job.profile).profile == "gpu"


def test_several_endpoints_travel_as_a_list(path: Path) -> None:
    flags = ["--agent", "openai", "--model", "m"]
    assert planned(*flags).agent.base_url is None
    flags += ["--base-url", "http://a/v1", "--base-url", "http://b/v1"]
    assert planned(*flags).agent.base_url == "http://a/v1,http://b/v1"


def test_each_sample_of_tamper_plays_one_case(path: Path) -> None:
    selection = chosen(path, [row(0), row(1, cheats=["lie"])], "--agent", "tamper")
    jobs = list(planned("--agent", "tamper").jobs(selection, lambda _: True))
    played = [(job.instance_id, job.group_size, job.agent.params["case"]) for job in jobs]
    assert played == [("s0", 2, "guess"), ("s0", 2, "peek"), ("s1", 1, "lie")]


def test_one_tamper_case_can_be_chosen(path: Path) -> None:
    selection = chosen(path, [row(0)], "--agent", "tamper")
    jobs = list(
        planned("--agent", "tamper", "--tamper-case", "peek").jobs(selection, lambda _: True)
    )
    assert [job.agent.params["case"] for job in jobs] == ["peek"]


def test_an_unknown_tamper_case_lists_the_known_ones(path: Path) -> None:
    selection = chosen(path, [row(0)], "--agent", "tamper")
    with pytest.raises(ConfigurationError, match="known: guess, peek"):
        planned("--agent", "tamper", "--tamper-case", "bribe").check(selection)


def test_an_item_without_tamper_cases_is_an_error(path: Path) -> None:
    selection = chosen(path, [row(0, cheats=[])], "--agent", "tamper")
    with pytest.raises(ConfigurationError, match="has no tamper cases"):
        planned("--agent", "tamper").check(selection)


SWE_ROW = {
    "instance_id": "o__r.1.func__x",
    "repo": "o/r",
    "patch": "--- a/x\n+++ b/x\n",
    "problem_statement": "it is wrong",
    "FAIL_TO_PASS": ["tests/test_x.py::test_a[b c'$<]"],
    "PASS_TO_PASS": [f"tests/test_x.py::test_{n}" for n in range(5)],
}


def swe_arguments(*flags: str) -> Any:
    return parse(SWE_SMITH, flags).own


def test_swe_rows_with_too_many_tests_are_passed_over_on_request() -> None:
    as_json = SWE_ROW | {"PASS_TO_PASS": json.dumps(SWE_ROW["PASS_TO_PASS"])}
    for row_ in (SWE_ROW, as_json):
        assert SWE_SMITH.skip_reason(row_, swe_arguments()) is None
        assert SWE_SMITH.skip_reason(row_, swe_arguments("--max-tests", "6")) is None
        reason = SWE_SMITH.skip_reason(row_, swe_arguments("--max-tests", "5"))
        assert reason == "more than 5 tests (--max-tests)"


@pytest.mark.parametrize("tests", [[], "[]", None])
def test_swe_rows_without_tests_are_passed_over(tests: object) -> None:
    reason = SWE_SMITH.skip_reason(SWE_ROW | {"FAIL_TO_PASS": tests}, swe_arguments())
    assert reason == "FAIL_TO_PASS names no test"


def test_a_local_repo_base_url_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mirrors").mkdir()
    prepared = SWE_SMITH.prepare(
        SWE_ROW | {"source": {"type": "git", "repo_base_url": "https://old"}},
        swe_arguments("--repo-base-url", "mirrors"),
    )
    assert prepared["repo_base_url"] == str(tmp_path / "mirrors")
    assert prepared["source"]["repo_base_url"] == str(tmp_path / "mirrors")
