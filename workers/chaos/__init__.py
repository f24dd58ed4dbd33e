"""The chaos harness: kill everything under load, then prove that nothing was lost or doubled.

    __main__.py  the command
    consumer.py  a reader that writes down what it gets
    env.py       commands of random length
    fleet.py     the processes of a run
    orphans.py   how long what was left lives
    producer.py  enqueues at an even rate
    schedule.py  what is killed when
    skewed.py    a module under a wrong clock
    verdict.py   what everybody wrote down, compared

    python -m workers.chaos --minutes 5 --seed 1

`schedule` says what is killed when, `fleet` holds the processes, `env`, `producer` and `consumer`
are what runs, `verdict` compares what everybody wrote down.
"""
