"""Sampling by token ids: ids in, ids out.

anchor.py        a sampled reply that later prompts may continue
chat.py          token mode: each prompt continues the last one exactly
continuation.py  a reply that the server aborted, and what continues it
invariants.py    checks a record's tokens independently of the code that merged them
merge.py         merge the token records of turns into training sequences
replies.py       the replies of one attempt, and what continues each of them
rescore.py       recompute recorded logprobs at the server
servers/         servers that take and return token ids
"""
