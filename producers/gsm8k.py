"""Grade-school maths in GSM8K's format: question, worked solution, one number."""

from __future__ import annotations

import sys

from producers.base import Producer, main

_EXAMPLES = """\
GSM8K:
  the full dataset (needs the extra `datasets`), 100 problems, 4 samples each:
    python -m producers.gsm8k --dataset openai/gsm8k:main --items 100 --group-size 4 \\
        --agent openai --model MODEL --base-url http://127.0.0.1:8000/v1
  your own file with the columns question and answer ("... #### N"):
    python -m producers.gsm8k --dataset problems.jsonl --items all

"""

PRODUCER = Producer(
    name="gsm8k",
    env="gsm8k",
    description="Grade-school maths problems as trajectory jobs.",
    examples=_EXAMPLES,
)

if __name__ == "__main__":
    sys.exit(main(PRODUCER))
