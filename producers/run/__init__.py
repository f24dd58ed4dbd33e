"""From rows to a finished run.

dataset.py          rows of a file or of Hugging Face
flags.py            flags as fields of a dataclass; types of their values
follow.py           watch a run until its groups have finished
launch.py           one run, top to bottom: send its jobs, follow it
options.py          options of all producers
plan.py             turn selected rows into jobs; the judge of `--judge`
programs.py         the program of `--agent command`
progress.py         progress and the table of results
report.py           the report at the end
sandbox_options.py  options of the sandbox
selection.py        read and validate rows
single.py           one job without a run
words.py            flags of a producer in other commands
queueing/           how a run is queued beside others
"""
