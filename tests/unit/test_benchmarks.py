"""Benchmarks take turns, compare within a round, and count every process of a side."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from benchmarks import __main__ as command
from benchmarks import processes
from benchmarks.measuring import HERE, Part, Turn, measure, metered
from benchmarks.processes import PEERS
from benchmarks.report import add_to_history, table

BURN = "import time\nwhile time.process_time() < 0.2: pass"


def part_of(cases):
    @contextmanager
    def offered(scale):
        yield cases

    return Part("thing", offered)


def measured(cases, rounds=3):
    return measure(part_of(cases), scale=1, rounds=rounds, say=lambda _: None)


def test_a_ratio_is_taken_within_each_round_so_a_slower_round_does_not_change_it():
    slowness = {"ours": iter([1, 10, 3]), "other": iter([1, 10, 3])}

    def side(name, per_s):
        return lambda: Turn(100, next(slowness[name]) * 100 / per_s, 1.0)

    found = measured({"case": {"other": side("other", 50), "ours": side("ours", 100)}})["cases"]
    assert found["case"]["sides"]["ours"]["per_s"] == {"median": 33.33, "min": 10, "max": 100}
    [ratio] = found["case"]["ratios"]
    assert ratio["rate"] == {"median": 2, "min": 2, "max": 2}


def test_sides_take_turns_in_an_order_that_is_reversed_each_round():
    order = []

    def side(name):
        return lambda: order.append(name) or Turn(1, 1.0, 1.0)

    measured({"case": {"other": side("other"), "ours": side("ours")}})
    assert order == ["other", "ours", "ours", "other", "other", "ours"]


def test_a_side_that_cannot_run_here_is_named_with_the_reason():
    found = measured({"case": {"peer": "needs Python 9", "ours": lambda: Turn(1, 1.0, 1.0)}})
    assert found["missing"] == {"case: peer": "needs Python 9"}
    assert any("needs Python 9" in line for line in table("name", found))
    assert found["cases"]["case"]["ratios"] == []


def test_children_count_whether_they_have_ended_or_run_on():
    program = f"input()\n{BURN}\nprint(flush=True)\ninput()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as running:
        assert running.stdin
        assert running.stdout
        with metered(named=running.pid) as meter:
            running.stdin.write(b"\n")
            running.stdin.flush()
            subprocess.run([sys.executable, "-c", BURN], check=True)
            running.stdout.readline()
        running.communicate(b"\n")
    assert meter.cpu_s[HERE] >= 0.15
    assert meter.cpu_s["named"] >= 0.1  # its start may have been before
    turn = meter.turn(2, of=("named",))
    assert turn.cpu_s == meter.cpu_s["named"]
    assert turn.facts["here_cpu_ms"] == pytest.approx(500 * meter.cpu_s[HERE])


@pytest.mark.parametrize("name", command.PARTS)
def test_every_part_says_what_it_compares(name):
    assert len(command.docstring(name).splitlines()[0]) < 100
    assert "\nPART = Part(" in command.PARTS[name].read_text()


def test_help_lists_every_part(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert [name for name in command.PARTS if f"\n  {name} " not in shown] == []


def test_an_unknown_part_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["factroy"])
    assert ended.value.code == 2
    assert "factory" in capsys.readouterr().err


def test_a_release_adds_one_line_to_the_history(tmp_path):
    found = measured(
        {"case": {"other": lambda: Turn(1, 1.0, 0.5), "ours": lambda: Turn(1, 0.5, 0.1)}}
    )
    path = tmp_path / "history.jsonl"
    for _ in range(2):
        add_to_history({"version": "1", "parts": {"name": found, "bad": {"failed": "x"}}}, path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 2
    case = lines[0]["parts"]["name"]["cases"]["case"]
    assert case["sides"]["ours"]["per_s"]["median"] == 2
    assert case["ratios"][0]["cpu"]["median"] == 0.2


@pytest.mark.parametrize(("exit_code", "found"), [(127, False), (0, True)])
def test_a_newer_python_is_taken_from_the_path_only_if_it_runs(
    tmp_path, monkeypatch, exit_code, found
):
    launcher = tmp_path / "python3.99"
    launcher.write_text(f"#!/bin/sh\nexit {exit_code}\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(processes.pythons((3, 99))) == [str(launcher)] * found


def test_a_peer_without_the_python_it_needs_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "VENVS", tmp_path / "venvs")
    monkeypatch.setenv("PATH", str(tmp_path))
    why = processes.peer_python("harbor", at_least=(3, 99))
    assert why == "needs Python 3.99 or newer, and none was found"


@pytest.mark.parametrize("lock", sorted(PEERS.glob("*.txt")), ids=lambda lock: lock.stem)
def test_peers_are_pinned_by_hash_and_name_no_index(lock):
    text = lock.read_text()
    pins = [line for line in text.replace("\\\n", " ").splitlines() if "==" in line]
    assert pins
    assert [pin for pin in pins if "--hash=sha256:" not in pin] == []
    assert not any(word in text for word in ("://", "--find-links", "-e ", "--index"))
