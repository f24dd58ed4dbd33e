"""Parts of the wire models; `hermes_queue.models` has the models themselves.

conversation.py  messages and tool calls, in OpenAI's form
failure.py       why there is no score
ids.py           which run and group an id is of
names.py         names of runs, lanes and items, and how ids are made of them
parameters.py    numbers, depth and text that jobs and records hold
"""
