"""Random texts and replies of a model, with characters and calls that are easily lost."""

from __future__ import annotations

PIECES = ["ls", "cat a", "é", "\n", " ", '"', "\\", "<", "</tool_call>", "{", "}", "0"]
PIECES += ["\U0001f9ea"]


def random_text(rng):
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(0, 8)))


def random_call(rng):
    """A call with blanks of its own, or one that nobody can read."""
    arguments = rng.choice(
        ['{"command":"ls"}', '{"command" : "cat a"}', "{ }", '{"command": "\\u00e9"}', "[1]", "{"]
    )
    blank = rng.choice(["", "\n", "  "])
    return f'<tool_call>{blank}{{"name":"terminal","arguments":{arguments}}}{blank}</tool_call>'


def random_replies(rng):
    for _ in range(rng.randrange(2, 7)):
        parts = [random_text(rng), *(random_call(rng) for _ in range(rng.randrange(0, 3)))]
        yield "".join(parts) + rng.choice(["", "", "", " and then ..."])
