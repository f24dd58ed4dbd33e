"""Formats of datasets; those that the commands offer have a `FORMAT`.

arrow_rows.py rows of Arrow tables
hf.py         a Hugging Face folder
jsonl.py      one record per line
lines.py      base of line formats that have no field for our ids
openai.py     OpenAI's fine-tuning format
ownership.py  binds a consumer group to one dataset
parquet.py    Parquet shards
sharegpt.py   ShareGPT
storing.py    write groups as rows
"""
