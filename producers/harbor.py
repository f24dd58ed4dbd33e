"""`python -m producers.harbor`: the producer that the plugin `harbor` declares."""

import sys

from hermes_queue import extensions
from producers.base import Producer, main

PRODUCER: Producer = extensions.load("producer", "harbor")

if __name__ == "__main__":
    sys.exit(main(PRODUCER))
