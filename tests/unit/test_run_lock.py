"""Lock files: what a run was made from, so that it can be made again."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import sums_env

from hermes_queue.errors import ConfigurationError, InputError
from producers.base import Producer
from producers.lock.contents import LockFile, check_lock, lock_of, read_lock
from producers.lock.flags import has_secret
from producers.run.dataset import open_dataset
from producers.run.options import ProducerOptions, parse
from producers.run.plan import make_plan
from producers.run.selection import select

PRODUCER = Producer(name="sums", env="sums_env:ENV", description="Sums.")
FLAGS = (
    "--items=3 --shuffle --seed=4 --agent=openai --model=m --base-url=http://a/v1"
    ' --base-url=http://b/v1 --temperature=0.7 --sampling=top_p=0.9 --sampling=stop=["x"]'
    " --agent-param=tools=prompted --group-size=2 --max-refills=1 --drop-zero-variance"
    " --max-policy-lag=2 --on-stale=drop --max-turns=7 --tool-timeout=2.5 --budget-tokens=100"
    " --budget-slot-hours=1.5 --max-drift=0.01"
    " --policy-version=9 --priority=3 --lane=eval --pass-rate=0.1-0.9"
).split()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    write(path, 5)
    return path


def write(path: Path, count: int, answer: int = 1) -> None:
    made = (
        {"instance_id": f"s{n}", "question": f"{n}+1?", "answer": n + answer} for n in range(count)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in made))


def locked(*words: str) -> LockFile:
    return lock_of(PRODUCER, sums_env.ENV, *planned(parse(PRODUCER, words)))


def planned(options: ProducerOptions) -> tuple[Any, Any]:
    plan = make_plan(PRODUCER, sums_env.ENV, options)
    dataset = open_dataset(str(options.rows.dataset), bundled=Path())
    return plan, select(PRODUCER, sums_env.ENV, dataset, options)


def written(tmp_path: Path, lock: LockFile) -> Path:
    path = tmp_path / "run.lock.json"
    path.write_text(lock.text())
    return path


def test_a_lock_gives_the_same_flags_back(rows, tmp_path):
    words = [f"--dataset={rows}", *FLAGS]
    path = written(tmp_path, locked(*words))
    before, after = parse(PRODUCER, words), parse(PRODUCER, ["--from-lock", str(path)])
    for group in fields(ProducerOptions):
        if group.name != "locking":
            assert getattr(after, group.name) == getattr(before, group.name)


def test_a_lock_says_rows_seed_endpoints_and_policy(rows):
    lock = locked(f"--dataset={rows}", *FLAGS)
    assert (lock.rows.count, lock.seed, lock.policy_version) == (3, 4, "9")
    assert lock.base_url == ["http://a/v1", "http://b/v1"]
    assert lock.env_version == str(sums_env.ENV.version)


def test_flags_of_the_command_line_take_precedence(rows, tmp_path):
    path = written(tmp_path, locked(f"--dataset={rows}", *FLAGS))
    given = ["--temperature", "0.1", "--sampling", "top_p=0.5", "--base-url", "http://c/v1"]
    options = parse(PRODUCER, [f"--from-lock={path}", *given])
    assert options.agent.temperature == 0.1
    assert options.agent.base_url == ("http://c/v1",)
    assert dict(options.agent.sampling) == {"top_p": 0.5, "stop": ["x"]}


SECRETS = [
    ("--base-url=http://me:hunter22@a/v1", "hunter22", "--base-url"),
    ("--base-url=http://hunter22@a/v1", "hunter22", "--base-url"),
    ("--base-url=http://a/v1?token=hunter22", "hunter22", "--base-url"),
    ("--sampling=api_key=hunter22", "hunter22", "--sampling api_key=***"),
    ("--sampling=x=sk-0123456789abcdefghij", "sk-0123", "--sampling x=***"),
    ('--sampling=extra_headers={"Authorization":"hunter22"}', "hunter22", "--sampling"),
    ('--sampling=extra={"a":[{"url":"http://x/?api-key=hunter22"}]}', "hunter22", "--sampling"),
    ("--sampling=auth=Bearer hunter22", "hunter22", "--sampling auth=***"),
    ('--sampling=extra={"clientSecret": "hunter22"}', "hunter22", "--sampling extra=***"),
]


@pytest.mark.parametrize(("word", "secret", "named"), SECRETS)
def test_a_secret_is_in_no_lock_and_has_to_be_given_again(rows, tmp_path, word, secret, named):
    lock = locked(f"--dataset={rows}", "--agent=garbage", "--sampling=top_p=0.9", word)
    assert secret not in lock.text()
    assert lock.masked[0].startswith(named)
    path = written(tmp_path, lock)
    with pytest.raises(ConfigurationError, match="the lock leaves secrets out: give --"):
        parse(PRODUCER, ["--from-lock", str(path)])
    again = parse(PRODUCER, ["--from-lock", str(path), word])
    assert again.agent == parse(PRODUCER, ["--agent=garbage", "--sampling=top_p=0.9", word]).agent


@pytest.mark.parametrize(
    ("value", "key"),
    [(100, "max_tokens"), ("a b", "stop"), ("http://a/v1?model=x", ""), ("", "api_key")],
)
def test_what_is_no_secret_is_left_alone(value, key):
    assert not has_secret(value, key)


def differing(tmp_path: Path, lock: LockFile, now: LockFile) -> str:
    path = written(tmp_path, lock)
    options = parse(PRODUCER, ["--from-lock", str(path)]).locking
    with pytest.raises(ConfigurationError) as caught:
        check_lock(options, now)
    allowed = parse(PRODUCER, ["--from-lock", str(path), "--allow-differences"]).locking
    [line] = check_lock(allowed, now)
    assert line in str(caught.value)
    return line


def test_the_same_run_differs_in_nothing(rows, tmp_path):
    path = written(tmp_path, locked(f"--dataset={rows}", "--items=all"))
    options = parse(PRODUCER, ["--from-lock", str(path)])
    assert check_lock(options.locking, locked("--from-lock", str(path))) == []


@pytest.mark.parametrize(("count", "answer"), [(6, 1), (4, 1), (5, 2)])
def test_other_rows_are_refused_and_counted(rows, tmp_path, count, answer):
    flags = (f"--dataset={rows}", "--items=all")
    before = locked(*flags)
    write(rows, count, answer)
    line = differing(tmp_path, before, locked(*flags))
    assert line.startswith(f"rows: {count} of rows.jsonl, ")
    assert "(locked: 5 of rows.jsonl, " in line


def test_another_version_is_refused_by_its_name(rows, tmp_path):
    now = locked(f"--dataset={rows}")
    before = now.model_copy(update={"versions": {**now.versions, "hermes-queue": "0.0.1"}})
    assert "version of hermes-queue" in differing(tmp_path, before, now)
    before = now.model_copy(update={"env_version": "0"})
    assert "version of the env" in differing(tmp_path, before, now)


def test_the_lock_of_another_producer_says_which(rows, tmp_path):
    lock = locked(f"--dataset={rows}").model_copy(update={"producer": "gsm8k"})
    with pytest.raises(ConfigurationError, match="run python -m producers gsm8k --from-lock"):
        parse(PRODUCER, ["--from-lock", str(written(tmp_path, lock))])


@pytest.mark.parametrize("word", ["--out=/tmp/x", "--run-id=x", "--lock=x", "--unknown", "x"])
def test_a_lock_from_elsewhere_sets_nothing_but_what_a_run_is(rows, tmp_path, word):
    lock = locked(f"--dataset={rows}").model_copy(update={"flags": [word]})
    with pytest.raises(InputError, match="is no flag that says what a run is"):
        parse(PRODUCER, ["--from-lock", str(written(tmp_path, lock))])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"lock": 2}', "\xff"])
def test_what_is_no_lock_is_refused_by_its_field(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"x\.json: is no lock: "):
        read_lock(path)


def test_a_lock_is_written_where_it_is_wanted(rows, tmp_path):
    out = tmp_path / "out.json"
    lock = locked(f"--dataset={rows}")
    check_lock(parse(PRODUCER, ["--lock", str(out)]).locking, lock)
    assert read_lock(out) == lock
