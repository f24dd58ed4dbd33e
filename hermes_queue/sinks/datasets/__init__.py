"""Formats of datasets; those that the commands offer have a `FORMAT`.

arrow_rows.py   rows of Arrow tables
hf.py           a Hugging Face folder
jsonl.py        one record per line
lines.py        base of line formats that have no field for our ids
openai.py       OpenAI's fine-tuning format
parquet.py      Parquet shards
preferences.py  pairs of a better and a worse trajectory
sharegpt.py     ShareGPT
swe_smith.py    the styles of SWE-smith's trajectories
tokens.py       token ids and labels
"""
