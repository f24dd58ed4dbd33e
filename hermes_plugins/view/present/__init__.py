"""From a raw record to what is shown of it, in a page or a terminal.

    ansi.py          colours of terminals as names of classes
    branches.py      other conversations of a program: `branches`, `of_branch`
    conversation.py  messages: `messages`, `each_message`, `message`, `outline`
    decoding.py      token ids as text, with a tokenizer file: `Decoder`
    heads.py         ids, outcome, stages, events, earlier attempts; all of it: `page`
    passages.py      findings of judges at what they quote, labels of people
    patches.py       `patch`: unified diff by file
    shapes.py        values of a record as they ought to be, or as JSON
    texts.py         long texts with their marks: `text_of`
    tokens.py        sequences: `tokens`, `sequences`, `sequence_turns`
    verdicts.py      `verifier`: what the report says

All are pure functions of a decoded record, a `dict` that nobody has validated: of a body in Redis
or in an archive (fields that have their default are missing, arrays are packed), or of a line of a
JSONL file. Models and programs wrote what is in it. None of these functions raises because of a
record's shape, whatever it is: a field of a wrong type is shown as JSON. Each is bounded in what it
returns, in time by the size of the record. What they return can be dumped as JSON, except for the
octets of `tokens`.
"""

from hermes_plugins.view.present.branches import branches, of_branch
from hermes_plugins.view.present.conversation import each_message, message, messages, outline
from hermes_plugins.view.present.decoding import Decoder
from hermes_plugins.view.present.heads import attempts, events, head, page, stages
from hermes_plugins.view.present.passages import (
    ShownFinding,
    flagged_outline,
    shown_findings,
    shown_review,
    with_passages,
)
from hermes_plugins.view.present.patches import patch
from hermes_plugins.view.present.texts import text_of
from hermes_plugins.view.present.tokens import sequence_turns, sequences, tokens
from hermes_plugins.view.present.verdicts import report, verifier
from hermes_queue.terminal.escapes import label

__all__ = [
    "Decoder",
    "ShownFinding",
    "attempts",
    "branches",
    "each_message",
    "events",
    "flagged_outline",
    "head",
    "label",
    "message",
    "messages",
    "of_branch",
    "outline",
    "page",
    "patch",
    "report",
    "sequence_turns",
    "sequences",
    "shown_findings",
    "shown_review",
    "stages",
    "text_of",
    "tokens",
    "verifier",
    "with_passages",
]
