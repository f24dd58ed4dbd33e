"""Labels of people."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

from starlette.responses import Response

from hermes_plugins.view import present
from hermes_plugins.view.answers import Refusal
from hermes_plugins.view.app import ApiCall, Route, nothing
from hermes_queue.bodies.reviews import LABELS, TrajectoryReview, made_review
from hermes_queue.errors import InputError

REVIEWS_MOST = 2000
"""Reviews of one answer."""


def reviews(call: ApiCall) -> Response:
    """The labels that count, the latest first."""
    found = call.site.show_reviews()
    labels = [each for each in found.values() if each.label is not None][::-1]
    chosen = [each for each in labels if call.query.get("label", each.label) == each.label]
    kept = call.site.reviews
    return call.json(
        {
            "reviews": [_shown(each) for each in islice(chosen, REVIEWS_MOST)],
            "count": len(chosen),
            "labels": {name: sum(each.label == name for each in labels) for name in LABELS},
            "writable": kept is not None,
            "damaged_lines": kept.damaged_lines if kept else 0,
        }
    )


def review(call: ApiCall) -> Response:
    """Label a trajectory; whoever may look may do so, if the server was given a file."""
    kept = call.site.reviews
    if kept is None:
        raise Refusal(
            409, "labels are not kept", "start `hermes-queue view` with --reviews FILE.jsonl"
        )
    try:
        made = made_review(call.body, call.session.name, time.time())
    except InputError as error:
        raise Refusal(400, str(error), f"label is one of {', '.join(LABELS)}, or null") from error
    if call.site.index.row(made.trajectory_id) is None:
        raise nothing()
    kept.add(made)
    call.site.show_reviews()
    return call.json(_shown(made))


def _shown(each: TrajectoryReview) -> dict[str, Any]:
    return {"trajectory_id": each.trajectory_id, **present.shown_review(each)}


ROUTES = (
    Route("GET", "/api/reviews", reviews, parameters=("label",)),
    Route("POST", "/api/reviews", review),
)
