"""A program of thirty lines that follows the trail: it runs in the slot, with nothing but Python.

It changes the history as programs do: arguments are written anew, and reasoning is left out.
"""

import json
import os
import subprocess
import sys
import urllib.request

TOOL = json.loads(os.environ["TRAIL_TOOL"])
messages = [{"role": "user", "content": open(sys.argv[1]).read().strip()}]
while True:
    request = urllib.request.Request(
        f"{os.environ['TRAIL_URL']}/v1/chat/completions",
        json.dumps({"model": "tiny", "messages": messages, "tools": [TOOL]}).encode(),
        {"authorization": f"Bearer {os.environ['TRAIL_KEY']}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        reply = json.load(answer)["choices"][0]["message"]
    calls = reply.get("tool_calls") or []
    kept = {"role": "assistant", "content": reply.get("content") or "", "refusal": None}
    messages.append(kept)
    if not calls:
        sys.exit()
    kept["tool_calls"] = calls
    for call in calls:
        try:
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"))
            done = subprocess.run(
                ["bash", "-c", arguments["command"]], capture_output=True, text=True, timeout=20
            )
            text = f"[exit code {done.returncode}]\n{(done.stdout + done.stderr).strip()}"
        except (ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
            text = f"Invalid call: {type(error).__name__}"
        messages.append({"role": "tool", "tool_call_id": call["id"], "name": "x", "content": text})
