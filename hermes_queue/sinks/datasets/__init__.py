"""Formats of datasets; those that the commands offer have a `FORMAT`.

arrow_rows.py   rows of Arrow tables
jsonl.py        one record per line
lines.py        base of line formats that have no field for our ids
parquet.py      Parquet shards
sharegpt.py     ShareGPT
"""
