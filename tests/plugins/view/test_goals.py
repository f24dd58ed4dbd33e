"""The goals of the viewer, beside what was measured."""

from __future__ import annotations

from benchmarks.plugins.view import table as view_table


def viewer_run(**changed):
    """What a run of `benchmarks.plugins.view` found, with figures that meet every goal."""
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
