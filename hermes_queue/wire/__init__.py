"""Parts of the wire models; the models themselves are in `hermes_queue.models`.

arrays.py        token ids, masks and logprobs as blocks of memory
branches.py      the tree of a program's conversations
conversation.py  messages and tool calls in OpenAI's format
ids.py           extracts run and group from an id
judge.py         the model that judges a trajectory
names.py         names of runs, lanes and items, and the ids derived from them
parameters.py    limits of numbers, nesting and text in jobs and records
program.py       the run of an agent program
provenance.py    the producer and the trace of a job
regraded.py      the older record whose work a record measures again
turns.py         model calls and their tokens
"""
