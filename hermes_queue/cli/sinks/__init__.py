"""Commands that write results down.

atropos.py  `sink atropos`
dataset.py  `sink jsonl`, `sink parquet`, ...
export.py   `export`: a dataset of what is finished by now
options.py  options that `sink` and `export` share
places.py   positions in the stream, as options
sink.py     `sink`
"""
