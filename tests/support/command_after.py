"""`python -m command_after CODE ...`: runs the lines CODE, then `hermes-queue ...`."""

import sys

exec(sys.argv.pop(1), {})

from hermes_queue.cli import main  # noqa: E402 - CODE comes first

main()
