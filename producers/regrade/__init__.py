"""Today's verifier on recorded work: `hermes-queue regrade`.

command.py     from the flags to the run, top to bottom
comparison.py  new scores beside the old ones, and the report
plan.py        the jobs, one for each record
records.py     what is taken from records of a file or a run
"""
