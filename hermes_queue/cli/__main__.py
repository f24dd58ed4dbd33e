"""`python -m hermes_queue.cli`, for when the script `hermes-queue` is not installed."""

from hermes_queue.cli import main

main()
