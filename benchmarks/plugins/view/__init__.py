"""The viewer's goals, measured beside Inspect View: `python -m benchmarks.plugins.view --help`.

__main__.py      the command line
inspect_view.py  Inspect View over logs that Inspect wrote
ours.py          `hermes-queue view` over an archive of 100,000 rows
pages.py         a page in Chromium: CPU of its main thread, bytes, heap, nodes
running.py       a run of 200 trajectories with three viewers open, and without
served.py        the server: comparison, memory, commands of Redis
table.py         goals beside what was measured, as text and for the documentation
"""
