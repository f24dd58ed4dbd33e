"""Asks the agent's function each question on standard input; knows no answer."""

import datetime
import sys

sys.path.insert(0, "/srv/cron")
from schedule import matches

for line in sys.stdin:
    expression, when = line.rstrip("\n").split(" | ")
    try:
        print(matches(expression, datetime.datetime.fromisoformat(when)))
    except ValueError:
        print("ValueError")
