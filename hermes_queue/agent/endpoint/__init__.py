"""Calls of OpenAI-compatible servers.

bounded_answers.py  limits on the size of answers
chat.py             chat completions
choice.py           the endpoint of a trajectory; trusted endpoints
connection.py       connections of a process, bounded calls
counting.py         tokens of a conversation, by the server's tokenizer
dialect.py          tools as fields of the API or as text
errors.py           classification of an endpoint's errors
facts.py            version of a server and the distribution of its logprobs
limiter.py          permission to call an endpoint
probe.py            does the chat template show `tools` to the model?
recent.py           what is kept of endpoints, bounded
reply.py            JSON to records, records to JSON
request.py          one call, from the conversation to the body
tries.py            the tries of one call
trouble.py          what calls fail of now, by run
"""
