"""What the page of a trajectory says besides its messages, patch and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_plugins.view.present.conversation import outline
from hermes_plugins.view.present.heads import attempts, events, head, stages
from hermes_plugins.view.present.passages import ShownFinding, flagged_outline
from hermes_plugins.view.present.tokens import sequences
from hermes_plugins.view.present.verdicts import report


def page(raw: Mapping[str, Any], findings: Sequence[ShownFinding]) -> dict[str, Any]:
    """Head, report, stages, events, attempts, outline, findings and sequences, by these names.

    Args:
        raw: a record.
        findings: of judges about it, as `shown_findings` returns them.
    """
    return {
        "head": head(raw),
        "report": report(raw),
        "stages": stages(raw),
        "events": events(raw),
        "attempts": attempts(raw),
        "outline": flagged_outline(outline(raw), findings),
        "findings": findings,
        "sequences": sequences(raw),
    }
