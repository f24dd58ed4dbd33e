"""Actions on the deployment, for the role `operate` of a server with `--actions`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from hermes_plugins.view.actions import ACTIONS, ALL
from hermes_plugins.view.actions.base import REASON_MAX, Acting, OperatorAction
from hermes_plugins.view.answers import Refusal
from hermes_plugins.view.app import ApiCall, Route, nothing, text_of_error
from hermes_plugins.view.transcripts import refused
from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

TIMEOUT_S = 10.0
OPERATOR_HINT = "set HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL to a user that may write"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActionRequest:
    """What stands in the body of an action, beside its arguments."""

    dry_run: bool
    confirm: str
    reason: str
    met: int | None
    """How many the sender believes that it meets."""
    given: dict[str, Any]

    @classmethod
    def of(cls, call: ApiCall) -> ActionRequest:
        """Take a body apart; raises Refusal: a member is of a wrong type."""
        body = dict(call.body)
        dry_run, met = body.pop("dry_run", False), body.pop("met", None)
        confirm, reason = body.pop("confirm", None) or "", body.pop("reason", None) or ""
        if not isinstance(dry_run, bool):
            raise Refusal(400, "dry_run is true or false")
        if not isinstance(confirm, str):
            raise Refusal(400, "confirm is a text")
        is_text = isinstance(reason, str) and len(reason) <= REASON_MAX and reason.isprintable()
        if not is_text:
            raise Refusal(400, f"reason is at most {REASON_MAX} printable characters")
        if met is not None and (isinstance(met, bool) or not isinstance(met, int)):
            raise Refusal(400, "met is a whole number")
        return cls(dry_run, confirm, reason.strip(), met, body)


def known(call: ApiCall) -> Response:
    """What can be done."""
    _may(call)
    listed = [
        {
            "name": action.name,
            "help": action.help,
            "arguments": action.arguments.model_json_schema()["properties"],
            "confirmed": action.confirm is not None,
        }
        for action in ALL
    ]
    return call.json({"actions": listed})


def act(call: ApiCall) -> Response:
    """Do something, or count what it would meet."""
    ledger = _may(call)
    action = ACTIONS.get(call.path["name"])
    if action is None:
        raise nothing()
    request = ActionRequest.of(call)
    arguments = _arguments(action, request.given)
    line = action.command_line(arguments, request.reason)
    met = action.meets(ledger, arguments)
    if request.dry_run:
        return call.json({"met": met, "done": 0, "command": line})
    _check(action, arguments, request, met)
    done = _done(call, action, arguments, request)
    return call.json({"met": met, "done": done, "command": line})


def _may(call: ApiCall) -> Ledger:
    """The ledger that counts; raises Refusal: nothing may be done here."""
    if not call.site.actions:
        raise Refusal(403, "this server only shows", "start `hermes-queue view` with --actions")
    if call.site.ledger is None:
        raise Refusal(404, "Redis is not among the sources", "start without --no-redis")
    return call.site.ledger


def _arguments(action: OperatorAction[Any], given: dict[str, Any]) -> Any:
    try:
        return action.arguments.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        wanted = ", ".join(action.arguments.model_fields)
        raise Refusal(400, f"{where}: {first['msg']}", f"arguments: {wanted}") from None


def _check(action: OperatorAction[Any], arguments: Any, request: ActionRequest, met: int) -> None:
    if action.confirm and request.confirm != (name := action.confirm(arguments)):
        raise Refusal(409, "this has to be confirmed", f"confirm must be {name!r}")
    if request.met is not None and met > request.met:
        raise Refusal(409, f"it meets {met} by now, not {request.met}", "look again")


def _done(
    call: ApiCall, action: OperatorAction[Any], arguments: Any, request: ActionRequest
) -> int:
    """Do it, and record who did what, whatever becomes of it."""
    who = f"by {call.session.name or 'somebody'}"
    reason = f"{who}: {request.reason}" if request.reason else f"{who}, from the viewer"
    result = "failed because of a fault of ours"
    try:
        with _operator(call) as ledger:
            acting = Acting(ledger, call.site.operator_url, reason, call.site.stopping.is_set)
            done = action.act(acting, arguments)
            result = f"{done} done"
            return done
    except HermesQueueError as error:
        result = text_of_error(error)
        if refused(error):
            raise Refusal(403, "Redis does not let this user do that", OPERATOR_HINT) from error
        raise
    finally:
        logger.warning(
            "%s: %s: %s",
            action.name,
            reason,
            result,
            extra={
                "action": "view_action",
                "name_of_action": action.name,
                "by": call.session.name,
                "address": call.address,
                "arguments": arguments.model_dump(mode="json", exclude_defaults=True),
                "result": result,
            },
        )


@contextmanager
def _operator(call: ApiCall) -> Iterator[Ledger]:
    """The ledger of who may write. Opened for each action: they are few."""
    shown = call.site.ledger
    if call.site.operator_url is None and shown is not None:
        yield shown
        return
    with closing(Ledger.connect(call.site.operator_url, timeout_s=TIMEOUT_S)) as ledger:
        if shown is not None:
            _check_same(shown, ledger)
        yield ledger


def _check_same(shown: Ledger, ledger: Ledger) -> None:
    """Refuse to act where another deployment is looked at; a replica of it is the same."""
    theirs = ledger.deployment_id()
    client: Any = shown.client
    with explained(shown.url):
        ours = client.get(shown.key("deployment"))
    if ours is None or ours.decode() != theirs:
        raise ConfigurationError(
            "HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL names another deployment than these pages show"
        )


ROUTES = (
    Route("GET", "/api/actions", known, role="operate"),
    Route("POST", "/api/actions/{name}", act, role="operate", asks_redis=True),
)
