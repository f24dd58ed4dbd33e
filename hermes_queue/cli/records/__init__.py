"""Commands that check recorded trajectories against what is there today.

regrade.py  today's verifier on recorded work
rescore.py  recorded logprobs against those of the server
"""
