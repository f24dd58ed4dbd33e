"""What the API of `docs/plugins/view-api.md` answers, in plain functions of a `ApiCall`.

acting.py       actions on the deployment
comparing.py    the samples of a group side by side
lists.py        trajectories, histograms, runs and groups
live.py         the deployment as it is now, and dead letters
reviews.py      labels of people
session.py      who asks, login, and the page itself
trajectory.py   one trajectory

The table of all routes is `every_route`.
"""

from __future__ import annotations

from hermes_plugins.view.app import Route
from hermes_plugins.view.routes import (
    acting,
    comparing,
    lists,
    live,
    reviews,
    session,
    trajectory,
)


def every_route() -> tuple[Route, ...]:
    """All routes, in the order in which they are tried."""
    modules = (lists, comparing, trajectory, live, acting, reviews, session)
    return tuple(route for module in modules for route in module.ROUTES)
