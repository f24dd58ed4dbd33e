"""The command line: what is refused, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from producers.base import Producer, main

PRODUCER = Producer(name="sums", env="sums_env:ENV", description="Sums.")


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rows.jsonl"
    row = {"question": "1+1?", "answer": 2}
    path.write_text("".join(json.dumps(row | {"instance_id": f"s{n}"}) + "\n" for n in range(3)))
    return str(path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--items", "0"], "--items: must be at least 1, not 0"),
        (["--items", "-3"], "--items: must be at least 1, not -3"),
        (["--items", "many"], "'many' is not a whole number"),
        (["--group-size", "0"], "--group-size: must be 1 to 1024"),
        (["--priority", "10"], "--priority: must be 0 to 9"),
        (["--temperature", "nan"], "--temperature: must be at least 0"),
        (["--total-timeout", "0"], "--total-timeout: must be more than 0"),
        (["--sampling", "top_p"], "'top_p' is not KEY=VALUE"),
        (["--max-turns", "0"], "--max-turns: must be 1 to 10000"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag; see"),
        (["--item", "2"], "unrecognized arguments: --item 2; did you mean --items?"),
    ],
)
def test_a_wrong_flag_is_a_usage_error(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(PRODUCER, flags) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env", "nope"], "env 'nope' is unknown; known: gsm8k"),
        (["--env", "sums_env:NOPE"], "env 'sums_env:NOPE' cannot be loaded"),
        (["--env", "sums_env:WRONG_TOOL"], "tool 'teleport' is unknown"),
        (["--agent", "nope"], "agent 'nope' is unknown; known: command, garbage"),
        (["--agent", "openai"], "--model"),
        (["--agent", "openai", "--agent-param", "token_id=true"], "context_tokens, logprobs_mode"),
        (["--agent", "openai", "--agent-param", "mode=token"], "mode: Input should be 'messages'"),
        (["--agent", "nop", "--agent-param", "a=1"], "nop has no such parameter; it has context,"),
        (["--tamper-case", "peek"], "needs --agent tamper"),
        (["--run-id", "a b"], "--run-id 'a b'"),
        (["--profile", "a b"], "--profile 'a b'"),
        (["--run-id", "../a"], "--run-id '../a'"),
        (["--run-id", "a/b"], "--run-id 'a/b'"),
        (["--run-id", "x" * 201], "has 201 characters"),
        (["--dataset", "gone.jsonl"], "gone.jsonl: no such file"),
        (["--instance-id", "gone"], "--instance-id gone: not in rows.jsonl"),
        (["--offset", "3"], "has no rows after --offset 3"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(
    rows: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(PRODUCER, ["--dataset", rows, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")


@pytest.mark.parametrize("backend", ["local", "modal"])
def test_a_profile_that_the_worker_started_here_would_not_know_is_refused_first(
    rows: str,
    backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("HERMES_QUEUE_REDIS_URL", raising=False)
    monkeypatch.setattr("hermes_queue.broker.embedded.should_embed", lambda _: True)
    (tmp_path / "profiles.yaml").write_text("big: {cpu: 8}")
    monkeypatch.setenv("HERMES_QUEUE_MODAL_PROFILES", str(tmp_path / "profiles.yaml"))
    assert main(PRODUCER, ["--dataset", rows, "--sandbox", backend, "--profile", "gpu"]) == 2
    known = "big, default" if backend == "modal" else "default"
    message = f"--profile: sandbox profile 'gpu' is unknown to this worker; known: {known} ("
    assert message in capsys.readouterr().err


def test_a_run_that_no_trainer_can_read_does_not_wait_for_one(
    rows: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HERMES_QUEUE_REDIS_URL", raising=False)
    assert main(PRODUCER, ["--dataset", rows, "--max-ahead", "1"]) == 2
    assert "--max-ahead: no trainer reads a run that is made on" in capsys.readouterr().err


def test_a_model_without_an_endpoint_is_refused_before_anything_starts(
    rows: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HERMES_QUEUE_REDIS_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert main(PRODUCER, ["--dataset", rows, "--agent", "openai", "--model", "m"]) == 2
    said = capsys.readouterr().err
    assert "--agent openai: name the model's endpoint with --base-url URL or " in said
    assert "HERMES_QUEUE_MODEL_BASE_URL" in said


def test_a_wrong_variable_is_named(
    rows: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_PRODUCER_BATCH", "0")
    assert main(PRODUCER, ["--dataset", rows]) == 2
    assert "HERMES_QUEUE_PRODUCER_BATCH" in capsys.readouterr().err


def test_an_unreachable_redis_is_exit_code_4_and_never_a_fallback(
    rows: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", "unix:///nonexistent/redis.sock")
    assert main(PRODUCER, ["--dataset", rows]) == 4
    assert "cannot be reached" in capsys.readouterr().err


def prepare(row: dict[str, Any], _: Any) -> dict[str, Any]:
    return {**row, "question": row["text"]}


def skip_reason(row: dict[str, Any], _: Any) -> str | None:
    return str(json.loads(row["question"]))


def check(_: Any, __: Any) -> int | None:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("hook", "message", "line"),
    [
        (prepare, "rows.jsonl:1: prepare of producer 'theirs' raised KeyError: 'text'", 1),
        (skip_reason, "rows.jsonl:1: skip_reason of producer 'theirs' raised JSONDecodeError", 1),
        (check, "rows.jsonl: check of producer 'theirs' raised RuntimeError: no", 1),
    ],
)
def test_a_hook_that_raises_is_named_with_its_line(
    rows: str, hook: Any, message: str, line: int, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = replace(PRODUCER, name="theirs", **{hook.__name__: hook})
    assert main(theirs, ["--dataset", rows, "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert f"{__file__}:{hook.__code__.co_firstlineno + line}" in error


def test_a_prepare_that_returns_no_row_is_named(
    rows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = replace(PRODUCER, prepare=lambda row, _: row.clear())
    assert main(theirs, ["--dataset", rows, "--dry-run"]) == 2
    assert "rows.jsonl:1: prepare of producer 'sums' returned NoneType" in capsys.readouterr().err


def test_a_dry_run_needs_no_redis_and_says_what_it_read(
    rows: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", "unix:///nonexistent/redis.sock")
    assert main(PRODUCER, ["--dataset", rows, "--group-size", "4", "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert (summary["mode"], summary["items"], summary["jobs"]) == ("dry-run", 3, 12)
    assert "nothing was enqueued" in captured.err


def test_quiet_says_nothing(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PRODUCER, ["--dataset", rows, "--dry-run", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_results_file_must_not_be_the_dataset(
    rows: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HERMES_QUEUE_REDIS_URL", raising=False)
    before = Path(rows).read_bytes()
    assert main(PRODUCER, ["--dataset", rows, "--out", rows]) == 2
    assert "is not a trajectory record" in capsys.readouterr().err
    assert Path(rows).read_bytes() == before


def test_help_teaches_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, producers.swe_smith as p\n"
        "try: p.main(p.PRODUCER, ['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'celery', 'kombu', 'openai', 'modal', 'pyarrow', 'rich', 'datasets', 'redis',"
        " 'hermes_queue.models'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))\n"
    )
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert "loaded: []" in result.stdout
    assert "python -m producers.swe_smith --items 2" in result.stdout
    assert "exit codes:" in result.stdout
