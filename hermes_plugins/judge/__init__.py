"""A model judges a finished trajectory: `rewards.judge`.

judge.py       the calls, what they cost, and the verdict with the number
kept.py        answers on this host, by what was asked
opinion.py     the answer of a judge, checked
transcript.py  the transcript as a judge sees it
"""

from hermes_queue.plugins import Plugin

PLUGIN = Plugin(
    name="judge",
    purpose="Have a model judge finished trajectories.",
    code_lines=520,
    after=("hermes_plugins.judge.judge:open_judge",),
)
