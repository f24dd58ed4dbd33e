"""The chaos harness: kill everything under load, then prove that nothing was lost or doubled.

    python -m workers.chaos --minutes 5 --seed 1

`schedule` says what is killed when, `fleet` holds the processes, `env`, `producer` and `consumer`
are what runs, `verdict` compares what everybody wrote down.
"""
