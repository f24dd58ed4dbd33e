"""Benchmarks take turns, compare within a round, and count every process of a side."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from benchmarks import __main__ as command
from benchmarks import parts, processes
from benchmarks.measuring import HERE, Part, Turn, measure, metered
from benchmarks.processes import PEERS
from benchmarks.report import add_to_history, table
from benchmarks.view import table as view_table

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


@pytest.mark.parametrize("name", command.names())
def test_every_part_is_listed_and_says_what_it_compares(name):
    assert f"{name}.py" in parts.__doc__
    assert len(command.docstring(name).splitlines()[0]) < 100
    path = f"{parts.__path__[0]}/{name}.py"
    with open(path) as source:
        assert "\nPART = Part(" in source.read()


def test_help_lists_every_part(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert [name for name in command.names() if f"\n  {name} " not in shown] == []


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


# --- the viewer's goals ------------------------------------------------------------------------


def viewer_run(**changed):
    """What a run of `benchmarks.view` found, with figures that meet every goal."""
    page = dict.fromkeys(
        (
            *("cpu_s", "cpu_shown_s", "heap_bytes", "code_bytes", "data_bytes", "requests"),
            *("first_paint_s", "elements", "text_bytes"),
        ),
        0.1,
    )
    pages = (*view_table.LISTS, "first page", "long", "long, all", "tokens")
    spread = {"min": 1, "median": 1, "max": 1}
    sides = {"no viewer": {}, "ours": {"per_s": spread, "facts": {"ids_wrong": {"max": 0}}}}
    return {
        "pages": {name: {"ours": [page], "inspect": [{**page, "cpu_s": 9}]} for name in pages},
        "served": {"cpu_s": 0.2, "most_mb": 90, "nobody": 0, "lookers": 21, "top": 20},
        "inspect": {"resident_mb": 135},
        "index": {
            "read archive of large records": {"rows_per_cpu_s": 500},
            "read JSON lines of large records": {"rows_per_cpu_s": 400},
            "restart, nothing new": {"wall_s": 0.1, "cpu_s": 0.1},
            "queries": {"first_page_ms": 6, "sort_cost_ms": 40, "histogram_of_ms": 900},
        },
        "running": {
            "cases": {"200": {"sides": sides, "ratios": [{"rate": spread, "cpu": spread}]}}
        },
        **changed,
    }


def test_a_goal_of_the_viewer_is_met_by_the_median_and_missed_by_name():
    assert {goal.met for goal in view_table.goals(viewer_run())} == {True}
    served = {**viewer_run()["served"], "nobody": 1}
    missed = [g.what for g in view_table.goals(viewer_run(served=served)) if not g.met]
    assert missed == ["commands of Redis in 20 s: nobody looks"]


def test_a_page_that_was_not_shown_in_time_is_no_goal_met():
    pages = {**viewer_run()["pages"], "tokens": {}}
    open_ = [g for g in view_table.goals(viewer_run(pages=pages)) if g.met is None]
    assert [goal.cells()[-1] for goal in open_] == ["not measured"] * 2


def test_the_table_of_the_viewer_replaces_the_one_before(tmp_path):
    run = viewer_run(rounds=3, began="2026-11-23T17:00:00Z", commit="c" * 40, chromium="156")
    run |= {"machine": {"processors": 2, "cpu": "x", "load": [1]}, "load_after": [2], "peers": {}}
    page = tmp_path / "page.md"
    page.write_text("before\n{}\nold\n{}\nafter\n".format(*view_table.MARKS))
    for _ in range(2):
        view_table.write(run, page)
    text = page.read_text()
    assert "old" not in text
    assert text.count("| first page: code | ≤ 120 KB |") == 1
    assert text.startswith("before\n")
    assert text.endswith("after\n")
