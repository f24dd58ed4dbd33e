"""The APIs that programs speak: a body becomes a `ModelCall`, an `Answer` becomes JSON or a stream.

base.py          the contract: what is asked, errors, events of a stream
body.py          reading a JSON body that a hostile program wrote
conversation.py  messages and tools in the terms that all dialects share
chat.py          OpenAI's Chat Completions
responses.py     OpenAI's Responses: what is asked
outputs.py       OpenAI's Responses: what is answered
messages.py      Anthropic's Messages
"""
