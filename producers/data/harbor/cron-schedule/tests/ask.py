"""Asks the agent's function each question of cases.txt; knows no answer."""

import datetime
import sys

sys.path.insert(0, "/srv/cron")
from schedule import matches

for line in open("/tests/cases.txt"):
    expression, when = line.rstrip("\n").split(" | ")
    try:
        print(matches(expression, datetime.datetime.fromisoformat(when)))
    except ValueError:
        print("ValueError")
