"""`python -m producers NAME ...`: a producer of ours, of a plugin, or `package.module:PRODUCER`."""

from __future__ import annotations

import sys

from hermes_queue import extensions
from hermes_queue.errors import ConfigurationError
from hermes_queue.terminal.output import echo
from producers.base import main
from producers.command import fail


def _run(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        names = ", ".join(extensions.known("producer"))
        echo(f"usage: python -m producers NAME [--help] ...\nNAME: {names}")
        return 0 if words[:1] in (["-h"], ["--help"]) else ConfigurationError.exit_code
    try:
        producer = extensions.load("producer", words[0])
    except ConfigurationError as error:
        return fail(str(error), error.exit_code)
    return main(producer, words[1:])


sys.exit(_run(sys.argv[1:]))
