"""A worker's first model call imports the SDK, which may take seconds: not on the event loop."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import asyncio, builtins, sys, threading
from hermes_queue.agent.endpoint import connection

loop_thread, real, slow = threading.get_ident(), builtins.__import__, set()

def importing(name, *args, **kwargs):
    if name.partition(".")[0] in WATCHED and name not in sys.modules:
        slow.add((name, threading.get_ident() == loop_thread))
    return real(name, *args, **kwargs)

WATCHED = {"openai", "aiohttp", "httpx2", "httpcore2"}
builtins.__import__ = importing

async def main():
    found = await connection._shared(1000)
    assert found.http
    await connection.close_clients()

asyncio.run(main())
assert ("openai", False) in slow, slow
print([name for name, on_the_loop in slow if on_the_loop])
"""


def test_no_part_of_it_is_imported_on_the_loop():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
