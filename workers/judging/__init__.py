"""A model judges a finished trajectory: `rewards.judge`.

judge.py       the calls, what they cost, and the verdict with the number
transcript.py  the transcript as a judge sees it
opinion.py     the answer of a judge, checked
kept.py        answers on this host, by what was asked
"""
