"""From rows to a finished run.

dataset.py          rows of a file or of Hugging Face
flags.py            flags as fields of a dataclass
follow.py           watch a run until its groups are there
launch.py           one run, top to bottom
numbers.py          numbers in a range, for argparse
options.py          options of all producers
plan.py             selected rows to jobs
progress.py         progress and the table of results
report.py           what is said at the end
sandbox_options.py  options of the sandbox
selection.py        rows read and validated
sending.py          jobs sent, budgets set
"""
