"""Section 5 of the viewer's design, over a real socket: who may ask, and what each answer says."""

from __future__ import annotations

import socket

import pytest
from view_server import OPERATE_TOKEN, VIEW_TOKEN, ViewServer

from hermes_plugins.view.guard import COMMON, DATA_POLICY, PAGE_POLICY
from hermes_plugins.view.routes import every_route
from hermes_plugins.view.tokens import WRONG_MAX

pytestmark = pytest.mark.xdist_group("view")
FETCH = ("Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")


def filled(path: str) -> str:
    """A path of the table with something for each id."""
    return (
        path.replace("{rest:path}", "run/r1")
        .replace("{name:path}", "main.js")
        .replace("{", "")
        .replace("}", "")
    )


NEEDS_TOKEN = [route for route in every_route() if route.role is not None]


@pytest.mark.parametrize("route", NEEDS_TOKEN, ids=lambda route: f"{route.method} {route.path}")
def test_no_route_of_the_api_answers_without_a_token(server, route):
    said = (
        server.post(filled(route.path), {})
        if route.method == "POST"
        else server.ask(filled(route.path))
    )
    assert (said.status, said.json["error"]) == (401, "a token is needed")


def test_what_needs_no_token_is_the_page_and_the_door(server):
    free = {route.path for route in every_route() if route.role is None}
    assert free == {
        "/{rest:path}",
        "/static/{digest}/{name:path}",
        "/api/session",
        "/api/login",
        "/api/logout",
    }


def test_nobody_learns_anything_from_the_door(server):
    said = server.ask("/api/session").json
    assert said.pop("role") is None
    assert not any(said.values())


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1:{port}.evil.example",
        "127.0.0.1:{port}@evil.example",
        "evil.example#127.0.0.1:{port}",
        "localhost.evil.example:{port}",
        "localhost.:{port}",
        "127.1:{port}",
        "2130706433:{port}",
        "0x7f.0.0.1:{port}",
        "0.0.0.0:{port}",
        "[::1]:{port}",
        "[::ffff:127.0.0.1]:{port}",
        "[::1%25lo]:{port}",
        "::1",
        "[127.0.0.1]:{port}",
        "127.0.0.1:{port} ",
        "127.0.0.1:0{port}0",
        "127.0.0.1:+{port}",
        "user@127.0.0.1:{port}",
        "",
    ],
)
def test_another_name_is_refused_whatever_is_asked(server, host):
    named = host.format(port=server.port)
    if named.strip() == server.authority:  # blanks around a value are no part of it
        return
    for path in ("/", "/api/session", "/static/x/main.js", "/nothing"):
        said = server.ask(path, host=[named], token=VIEW_TOKEN)
        assert said.status == 400, path


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:{port}", "127.0.0.1:{port}"])
def test_each_of_our_names_is_taken(server, host):
    assert server.ask("/api/session", host=[host.format(port=server.port)]).status == 200


def test_two_host_headers_and_none_are_refused(server):
    own = server.authority
    for hosts in ([own, own], [own, "evil.example"], ["evil.example", own], []):
        assert server.ask("/api/session", host=hosts, token=VIEW_TOKEN).status == 400


def test_a_request_without_host_of_the_old_protocol_is_refused(server):
    with socket.create_connection((server.host, server.port)) as raw:
        raw.sendall(b"GET /api/session HTTP/1.0\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_body_with_two_lengths_is_refused_since_a_proxy_may_read_the_other_one(server):
    headers = [("Content-Type", "application/json"), ("X-HQ-Request", "1")]
    headers.append(("Transfer-Encoding", "chunked"))
    said = server.ask("/api/logout", method="POST", headers=headers, body=b"2\r\n{}\r\n0\r\n\r\n")
    assert (said.status, said.headers["connection"]) == (400, "close")


def test_the_address_of_another_server_is_refused(server):
    for path in ("http://evil.example/api/session", "*", "//evil.example/api/session"):
        assert server.ask(path, token=VIEW_TOKEN).status == 400, path


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://{own}",
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        "http://localhost:{port}",
        "http://{own}.evil.example",
        "http://{own}/",
        "null",
        "",
        "{own}",
        "file://",
        "http://user@{own}",
    ],
)
def test_another_origin_neither_reads_nor_acts(server, origin):
    header = ("Origin", origin.format(own=server.authority, port=server.port))
    assert server.ask("/api/session", headers=[header]).status == 403
    assert server.post("/api/login", {"token": VIEW_TOKEN}, headers=[header]).status == 403


def test_two_origins_are_refused(server):
    own = ("Origin", f"http://{server.authority}")
    assert server.ask("/api/session", headers=[own]).status == 200
    assert server.ask("/api/session", headers=[own, own]).status == 403


@pytest.mark.parametrize(
    ("path", "site", "mode", "dest", "status"),
    [
        ("/api/session", "same-origin", "cors", "empty", 200),
        ("/api/session", "same-site", "cors", "empty", 403),
        ("/api/session", "cross-site", "cors", "empty", 403),
        ("/api/session", "cross-site", "navigate", "document", 403),
        ("/api/session", "none", "navigate", "document", 403),
        ("/api/session", "SAME-ORIGIN", "cors", "empty", 403),
        ("/", "none", "navigate", "document", 200),
        ("/t/x", "cross-site", "navigate", "document", 200),
        ("/t/x", "cross-site", "navigate", "iframe", 403),
        ("/t/x", "cross-site", "no-cors", "image", 403),
        ("/t/x", "cross-site", "no-cors", "document", 403),
        ("/t/x", "same-site", "cors", "empty", 403),
        ("/static/{digest}/main.js", "same-origin", "cors", "script", 200),
        ("/static/{digest}/main.js", "cross-site", "no-cors", "script", 403),
    ],
)
def test_what_browsers_say_of_where_a_request_comes_from_counts(
    server, path, site, mode, dest, status
):
    headers = list(zip(FETCH, (site, mode, dest), strict=True))
    path = path.format(digest=server.site.assets.digest)
    assert server.ask(path, headers=headers).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("Content-Type", "application/json"), ("X-HQ-Request", "1")], 200),
        ([("Content-Type", "application/json; charset=utf-8"), ("X-HQ-Request", "1")], 200),
        ([("Content-Type", "application/json")], 403),
        ([("Content-Type", "application/json"), ("X-HQ-Request", "0")], 403),
        ([("X-HQ-Request", "1")], 415),
        ([("Content-Type", "text/plain"), ("X-HQ-Request", "1")], 415),
        ([("Content-Type", "application/x-www-form-urlencoded"), ("X-HQ-Request", "1")], 415),
        ([("Content-Type", "application/jsonp"), ("X-HQ-Request", "1")], 415),
    ],
)
def test_a_change_is_json_with_our_header(server, headers, status):
    said = server.ask(
        "/api/test/changes", method="POST", headers=headers, body=b"{}", token=OPERATE_TOKEN
    )
    assert said.status == status


def test_the_role_view_changes_nothing(server):
    assert server.post("/api/test/changes", {}, token=VIEW_TOKEN).status == 403
    assert server.post("/api/test/changes", {"a": 1}, token=OPERATE_TOKEN).json == {"a": 1}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"[" * 60_000, 400),
        (b'{"a": "' + b"x" * (64 << 10) + b'"}', 413),
    ],
    ids=["empty", "list", "half", "no text", "deep", "large"],
)
def test_a_body_that_is_no_small_object_is_refused(server, body, status):
    headers = [("Content-Type", "application/json"), ("X-HQ-Request", "1")]
    said = server.ask(
        "/api/test/changes", method="POST", headers=headers, body=body, token=OPERATE_TOKEN
    )
    assert said.status == status


EVERY = [
    ("GET", "/", 200),
    ("GET", "/no/such/page", 404),
    ("HEAD", "/", 200),
    ("GET", "/api/session", 200),
    ("HEAD", "/api/session", 200),
    ("GET", "/api/nothing", 404),
    ("GET", "/api/session?x=1", 400),
    ("GET", "/api/test/fails", 500),
    ("GET", "/static/0/main.js", 404),
    ("GET", "/static/{digest}/main.js", 200),
    ("POST", "/api/session", 405),
    ("PUT", "/api/session", 405),
    ("OPTIONS", "/api/session", 405),
    ("TRACE", "/", 405),
    ("CONNECT", "/", 405),
    ("GET", "/" + "x" * 5000, 414),
    ("GET", "/api/session?" + "x" * 5000, 414),
    ("GET", "/a\\b", 400),
]


@pytest.mark.parametrize(("method", "path", "status"), EVERY)
def test_every_answer_has_the_headers_that_keep_it_in_its_place(server, method, path, status):
    headers = [("Content-Type", "application/json"), ("X-HQ-Request", "1")]
    path = path.format(digest=server.site.assets.digest)
    said = server.ask(path, method=method, headers=headers, token=VIEW_TOKEN)
    assert said.status == status
    for name, value in COMMON.items():
        assert said.headers[name.lower()] == value
    is_page = said.headers["content-type"] == "text/html; charset=utf-8"
    assert is_page == (path in ("/", "/no/such/page") and status != 405)
    policy = said.headers["content-security-policy"]
    assert policy == (PAGE_POLICY if is_page else DATA_POLICY)
    assert "server" not in said.headers
    assert method != "HEAD" or said.body == b""
    if status >= 400 and not is_page:
        assert set(said.json) >= {"error", "hint"}
        assert said.headers["cache-control"] == "no-store"


def test_what_is_not_http_gets_the_same_headers(server):
    with socket.create_connection((server.host, server.port)) as raw:
        raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        answer = raw.recv(4096).decode()
    assert answer.startswith("HTTP/1.1 400 ")
    for name, value in COMMON.items():
        assert f"{name.lower()}: {value}" in answer


def test_a_refused_method_names_those_that_are_allowed(server):
    assert server.ask("/api/session", method="DELETE").headers["allow"] == "GET, HEAD, POST"
    headers = [("Content-Type", "application/json"), ("X-HQ-Request", "1")]
    said = server.ask("/api/session", method="POST", headers=headers)
    assert said.headers["allow"] == "GET, HEAD"


def test_a_fault_says_nothing_of_itself_and_its_log_nothing_of_the_query(server, caplog):
    said = server.get("/api/test/fails")
    assert said.json == {"error": "a fault of the server", "hint": "its log says more"}
    assert "a secret of the server" in caplog.text
    assert server.get("/api/test/fails?q=private").status == 500
    assert server.get("/api/session?q=private").status == 400
    assert server.get("/api/test/fails/a%0aforged%20line").status == 404
    assert server.get("/api/test/fails/a%E2%80%A8forged").status == 404
    assert server.get("/api/test/fails/a%20forged").status == 500
    assert "GET /api/test/fails/a%20forged failed" in caplog.text
    assert "private" not in caplog.text


@pytest.mark.parametrize(
    "segment",
    [
        "..",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "%2Fetc%2Fpasswd",
        "C:%5Cwindows",
    ],
)
def test_an_id_that_looks_like_a_path_is_an_id(server, segment):
    said = server.get(f"/api/test/ids/{segment}")
    assert said.status == 200
    assert "/" in said.json or "." in said.json or "\\" in said.json


@pytest.mark.parametrize("segment", ["%00", "a%00b", "%ff%fe", "%0a", "a%0d%0aSet-Cookie:x", ""])
def test_an_id_that_is_no_text_is_unknown(server, segment):
    assert server.get(f"/api/test/ids/{segment}").status == 404


def test_a_slash_that_is_not_encoded_ends_an_id(server):
    assert server.get("/api/test/ids/a/b").status == 404
    assert server.get("/api/test/ids/a%2Fb").json == "a/b"


@pytest.mark.parametrize(
    "name",
    [
        "../app.py",
        "..%2f..%2fapp.py",
        "%2e%2e/app.py",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "vendor/LICENSE",
        "index.html",
        "vendor",
        "",
        "main.js%00.css",
        "./main.js",
    ],
)
def test_only_the_files_of_the_page_are_served(server, name):
    said = server.ask(f"/static/{server.site.assets.digest}/{name}")
    assert said.status == 404


def test_the_page_names_its_modules_ahead_by_addresses_that_last(server):
    page = server.ask("/").body.decode()
    for name in ("main.js", "vendor/other.js"):
        address = f"/static/{server.site.assets.digest}/{name}"
        assert f'"{address}"' in page
        said = server.ask(address, headers=[("Accept-Encoding", "gzip")])
        assert said.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert said.headers["content-encoding"] == "gzip"
        assert said.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "/static/main.js" not in page
    assert "later.js" not in page


def login(server: ViewServer, token: str, **more: str) -> tuple[int, str]:
    said = server.post("/api/login", {"token": token, **more})
    return said.status, said.headers.get("set-cookie", "")


def test_a_token_is_exchanged_for_a_cookie_that_scripts_and_other_sites_never_see(server):
    status, cookie = login(server, VIEW_TOKEN, name="Ada")
    assert status == 204
    value, *attributes = cookie.split("; ")
    assert {a.lower() for a in attributes} >= {"httponly", "samesite=strict", "path=/api"}
    assert VIEW_TOKEN not in cookie
    said = server.ask("/api/session", headers=[("Cookie", f"a=b; {value}; c=d")]).json
    assert (said["role"], said["name"], said["actions"]) == ("view", "Ada", False)
    forged = value[:-2] + ("AA" if value[-2:] != "AA" else "BB")
    for wrong in (forged, value.replace(".", "", 1), "hq_view=", "hq_view=..", "hq_view=é"):
        said = server.ask("/api/session", headers=[("Cookie", wrong)])
        assert (said.status, said.json["role"]) == (200, None)


def test_a_cookie_of_another_server_of_this_host_does_not_hide_ours(server):
    value = login(server, VIEW_TOKEN)[1].partition(";")[0]
    said = server.ask("/api/session", headers=[("Cookie", f"hq_view=planted; {value}")])
    assert said.json["role"] == "view"


def test_logout_takes_the_cookie_away(server):
    said = server.post("/api/logout", {})
    assert said.status == 204
    assert 'hq_view=""' in said.headers["set-cookie"]
    assert "Max-Age=0" in said.headers["set-cookie"]


def test_after_ten_wrong_tokens_not_even_the_right_one_is_looked_at(server):
    attempts = server.site.keys.attempts
    try:
        assert [login(server, f"wrong {n}")[0] for n in range(WRONG_MAX)] == [401] * WRONG_MAX
        said = server.post("/api/login", {"token": VIEW_TOKEN})
        assert (said.status, 0 < int(said.headers["retry-after"]) <= 60) == (429, True)
        assert server.get("/api/session").status == 429  # a token in a header counts, too
    finally:
        attempts.__init__()
    assert login(server, VIEW_TOKEN)[0] == 204
