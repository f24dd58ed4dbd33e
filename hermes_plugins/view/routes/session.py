"""Who asks, login, and the page itself."""

from __future__ import annotations

from starlette.responses import Response

from hermes_plugins.view.answers import Refusal
from hermes_plugins.view.app import ApiCall, Route, nothing
from hermes_plugins.view.tokens import NAME_MAX, SESSION_S, TOKEN_MAX, ViewSession

PAGES = frozenset({"", "all", "run", "group", "t", "dead", "review"})
"""First segments of addresses of the page, which reads the rest itself."""
FOREVER = "public, max-age=31536000, immutable"


def session(call: ApiCall) -> Response:
    """What the page may know before and after a login."""
    site, known = call.site, call.session.role is not None
    return call.json(
        {
            "role": call.session.role,
            "name": call.session.name,
            "deployment": site.deployment if known else "",
            "version": site.version if known else "",
            "sources": list(site.sources) if known else [],
            "live": known and site.live is not None,
            "tokenizer": known and site.tokenizer is not None,
            "reviews": known and site.reviews is not None,
            "actions": site.actions and call.session.may("operate"),
        }
    )


def login(call: ApiCall) -> Response:
    """Exchange a token for the cookie."""
    token, name = call.body.get("token"), call.body.get("name", "")
    if not isinstance(token, str) or len(token) > TOKEN_MAX:
        raise Refusal(400, "token is missing, or no text")
    if not isinstance(name, str) or len(name) > NAME_MAX or not name.isprintable():
        raise Refusal(400, f"name is at most {NAME_MAX} printable characters")
    role = call.site.keys.of_token(token, call.address)
    return _with_cookie(call, call.site.keys.seal(ViewSession(role, name.strip())), SESSION_S)


def logout(call: ApiCall) -> Response:
    """Take the cookie away."""
    return _with_cookie(call, "", 0)


def _with_cookie(call: ApiCall, value: str, age_s: int) -> Response:
    response = Response(status_code=204)
    response.set_cookie(
        call.site.cookie,
        value,
        max_age=age_s,
        path="/api",
        secure=call.secure,
        httponly=True,
        samesite="strict",
    )
    return response


def page(call: ApiCall) -> Response:
    """The page, which asks for everything else."""
    first = call.path["rest"].partition("/")[0]
    if first in ("api", "static"):
        raise nothing()
    status = 200 if first in PAGES else 404
    return call.site.assets.page.response(compress=call.gzip, cache="no-cache", status=status)


def static(call: ApiCall) -> Response:
    """One file of the page."""
    asset = call.site.assets.get(call.path["digest"], call.path["name"])
    if asset is None:
        raise nothing()
    return asset.response(compress=call.gzip, cache=FOREVER)


ROUTES = (
    Route("GET", "/api/session", session, role=None, needs_slot=False),
    Route("POST", "/api/login", login, role=None, needs_slot=False),
    Route("POST", "/api/logout", logout, role=None, needs_slot=False),
    Route("GET", "/static/{digest}/{name:path}", static, role=None, needs_slot=False),
    Route("GET", "/{rest:path}", page, role=None, needs_slot=False, parameters=None),
)
