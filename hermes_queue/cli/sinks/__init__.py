"""Commands that write results to destinations.

dataset.py         `sink jsonl`, `sink parquet`, ...
export.py          `export`: a dataset of everything finished so far
options.py         options that `sink` and `export` share; places in the stream
sink.py            `sink` and `sink atropos`
"""
