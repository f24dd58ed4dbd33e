"""The chaos harness: kill everything under load, then prove that nothing was lost or doubled.

__main__.py   the command
agent.py      the agent, whose tokens are counted
consumer.py   reads the results and writes them down
env.py        commands of random length
fleet.py      the processes of a run
judgement.py  compares journal, stream and consumers
orphans.py    time until everything dead is cleaned up
producer.py   enqueues at an even rate
schedule.py   the events: what is killed, and when
skewed.py     runs a module under a wrong clock

Run it with `python -m tests.chaos --minutes 5 --seed 1`.
"""
