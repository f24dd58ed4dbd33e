"""Calls of any OpenAI-compatible server.

bounded_answers.py  answers, bounded in size and depth
chat.py             chat completions
choice.py           which endpoint a trajectory talks to
connection.py       connections of a process, bounded calls
dialect.py          how tools travel: as fields of the API, or as text
errors.py           what an endpoint's errors mean
facts.py            version of a server and the distribution of its logprobs
limiter.py          permission to call an endpoint
probe.py            does the chat template show `tools` to the model?
reply.py            JSON to records, records to JSON
tries.py            the tries of one call
values.py           values of a server's JSON, checked
"""
