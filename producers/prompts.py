"""Plain prompts without a verifier: trajectories as data, without scores."""

from __future__ import annotations

import sys

from producers.base import Producer, main

_EXAMPLES = """\
plain prompts:
  every prompt of a file, 2 samples each, written as a dataset when they are done:
    python -m producers.prompts --dataset prompts.jsonl --items all --group-size 2 \\
        --agent openai --model MODEL --base-url http://127.0.0.1:8000/v1 --out trajectories.jsonl
  a row has `prompt` (and perhaps `system`), or `messages`:
    {"prompt": "Write a haiku about queues into haiku.txt"}
    {"messages": [{"role": "user", "content": "What does `find . -newer x` print?"}]}

"""

PRODUCER = Producer(
    name="prompts",
    env="prompts",
    description="Plain prompts as trajectory jobs, without a verifier and so without scores.",
    examples=_EXAMPLES,
)

if __name__ == "__main__":
    sys.exit(main(PRODUCER))
