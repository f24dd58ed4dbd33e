"""From rows to a finished run.

dataset.py        rows of a file or of Hugging Face
flags.py          flags of all producers
follow.py         watch a run until its groups are there
launch.py         one run, top to bottom
numbers.py        numbers in a range, for argparse
plan.py           selected rows to jobs
progress.py       progress and the table of results
report.py         what is said at the end
sandbox_flags.py  flags of the sandbox
selection.py      rows read and validated
"""
