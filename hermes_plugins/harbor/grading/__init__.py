"""The reward of what an agent left in its slot.

grader.py    the way from the agent's slot to a verdict
modes.py     the box in which tests run: separate, transplant, restart
places.py    files that decide which programs run; where tests start programs
disk.py      a disk of the host that is full
suspects.py  programs of the image that the agent has changed
undone.py    settings of the agent that tools of the tests would read
services.py  services of the agent's box
testrun.py   the tests, run in a box; outcomes by test, for the report
reward.py    reward.json and reward.txt
links.py     where paths of a box lead
needs.py     what a verifier fetches while it grades, and the projects that would steer it
provided.py  what a box gets before the agent's files
pythons.py   the interpreters of an image
imported.py  what Python imports for the tests
users.py     users of the image, as whom tests run programs
kit.py       uv and packages for verifiers without a network
shims/       the kit's programs
"""
