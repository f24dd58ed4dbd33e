"""gsm8k whose verifier reports what of a program it still sees in the slot: `watching_env`."""

from __future__ import annotations

import json

from envs.base import Verdict
from envs.gsm8k import Gsm8k

# What was killed is listed until it has come to its end; what was not never goes.
LOOK = """
import json, os, socket, time
def names():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if pid != "1":
                yield open("/proc/" + pid + "/comm").read().strip()
        except OSError:
            pass
give_up = time.monotonic() + 20
while len(seen := sorted(names())) > 2 and time.monotonic() < give_up:
    time.sleep(0.02)
try:
    socket.create_connection(("127.0.0.1", int(open("/tmp/port").read())), 5)
    found = "open"
except ConnectionRefusedError:
    found = "refused"
print(json.dumps(dict(processes=seen, endpoint=found)))
"""


class Watching(Gsm8k):
    name = "watching"

    async def verify(self, item, context, transcript):
        seen = await context.run(f"python3 -c '{LOOK}'; true")
        return Verdict(1.0, report=json.loads(seen.stdout))


ENV = Watching()
