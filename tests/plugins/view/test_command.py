"""`hermes-queue view`: what it listens on, whom it lets in, and what it says if it cannot."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from ports import free_port
from pydantic import SecretStr
from records import make_job, make_record

from hermes_plugins.view import command
from hermes_plugins.view.guard import allowed_host
from hermes_plugins.view.serving import listen, listen_unix
from hermes_plugins.view.settings import ViewSettings
from hermes_plugins.view.tokens import Keys
from hermes_queue.cli import cli
from hermes_queue.errors import ConfigurationError

pytestmark = pytest.mark.xdist_group("view")
TOKEN = "chosen-token-0123456789"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "out.jsonl"
    path.write_text(make_record(make_job()).to_json() + "\n")
    return path


def refused(*arguments: str) -> str:
    """The one line that the command says instead of starting."""
    done = CliRunner().invoke(cli, ["view", *arguments, "--no-redis"])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return done.output


def test_the_command_prints_an_address_that_opens_the_pages_and_ends_when_told(file):
    begun = subprocess.Popen(
        [sys.executable, "-m", "hermes_queue.cli", "view", str(file), "--no-redis", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address, _, token = begun.stdout.readline().strip().partition("/#token=")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        asked = urllib.request.Request(
            f"{address}/api/session", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(asked) as answer:
            assert b'"role":"view"' in answer.read()
        kept = file.parent / "cache/view/view.token"
        assert kept.read_text().strip() == token
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        begun.send_signal(signal.SIGTERM)
        assert begun.wait(30) == 0
    finally:
        begun.kill()
        begun.wait()
        begun.stdout.close()


def test_over_ssh_it_says_how_to_come_to_it(monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50000 192.0.2.1 22")
    near, far = allowed_host("127.0.0.1:9820"), allowed_host("hq.example:9820")
    assert next(command._hints("127.0.0.1", near)).startswith(
        "from your machine, first: ssh -L 9820:127.0.0.1:9820 "
    )
    assert "TLS" in next(command._hints("192.0.2.1", far))


def test_a_token_that_was_chosen_is_not_printed_into_a_log():
    keys, where = Keys({"view": TOKEN, "operate": "another-0123456789"}), allowed_host("hq:9820")
    options = command.ViewOptions(actions=True)
    assert list(command.greeting(options, keys, where, ["view"])) == [
        "view:    http://hq:9820/#token=$HERMES_QUEUE_VIEW_TOKEN",
        "operate: http://hq:9820/#token=another-0123456789",
    ]
    assert command._chosen(ViewSettings(token=SecretStr(TOKEN))) == ("view",)


def test_without_the_extra_it_says_what_to_install(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert "pip install 'hermes-queue[view]'" in refused(str(file))


def test_a_port_that_is_taken_and_an_address_that_is_not_ours_are_named(file):
    with listen("127.0.0.1", 0) as taken:
        said = refused(str(file), "--port", str(taken.getsockname()[1]))
    assert "is in use" in said
    assert "--port 0" in said
    token = {"HERMES_QUEUE_VIEW_TOKEN": TOKEN}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*token.popitem())
        assert "not an address of this machine" in refused(str(file), "--host", "192.0.2.1")


@pytest.mark.parametrize(
    ("host", "token", "allowed", "why"),
    [
        ("127.0.0.1", None, (), None),
        ("127.0.0.9", None, (), None),
        ("::1", None, (), None),
        ("localhost", None, (), None),
        ("10.0.0.5", None, (), "HERMES_QUEUE_VIEW_TOKEN"),
        ("10.0.0.5", TOKEN, (), None),
        ("0.0.0.0", None, ("hq.example",), "HERMES_QUEUE_VIEW_TOKEN"),
        ("0.0.0.0", TOKEN, (), "--allow-host"),
        ("0.0.0.0", TOKEN, ("hq.example",), None),
        ("::", TOKEN, (), "--allow-host"),
        ("0", TOKEN, (), "--allow-host"),
        ("", TOKEN, (), "--allow-host"),
        ("", None, (), "HERMES_QUEUE_VIEW_TOKEN"),
    ],
)
def test_an_address_that_others_reach_must_be_meant(host, token, allowed, why, monkeypatch):
    if token:
        monkeypatch.setenv("HERMES_QUEUE_VIEW_TOKEN", token)
    names = [allowed_host(name) for name in allowed]
    if why is None:
        command.check_reach(host, names, None, ViewSettings())
        return
    with pytest.raises(ConfigurationError, match=why):
        command.check_reach(host, names, None, ViewSettings())


def test_a_chosen_token_that_is_short_is_refused(file, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_VIEW_TOKEN", "short")
    assert "16 to 256" in refused(str(file), "--port", "0")


def test_a_token_file_that_others_read_is_refused(file):
    kept = file.parent / "cache/view/view.token"
    kept.parent.mkdir(parents=True, mode=0o700)
    kept.write_text("a-token-that-everybody-could-read\n")
    kept.chmod(0o644)
    assert "can be read by others" in refused(str(file), "--port", "0")
    kept.unlink()
    kept.symlink_to(file)
    assert "view.token" in refused(str(file), "--port", "0")


def test_the_operators_redis_is_known_to_nobody_without_actions(file, monkeypatch):
    url = "redis://operator:secret@127.0.0.1:1/0"
    monkeypatch.setenv("HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL", url)
    keys = Keys({"view": TOKEN})
    for actions, known in ((False, None), (True, url)):
        options = command.ViewOptions(sources=(file,), actions=actions)
        with command.open_site(options, keys, 0) as site:
            assert (site.operator_url, site.actions) == (known, actions)
    monkeypatch.setenv("HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL", "http://operator:secret@x")
    said = refused(str(file))
    assert "HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL" in said
    assert "secret" not in said


def test_each_role_has_a_token_of_its_own(file, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_VIEW_TOKEN", TOKEN)
    monkeypatch.setenv("HERMES_QUEUE_VIEW_OPERATOR_TOKEN", TOKEN)
    with pytest.raises(ConfigurationError, match="choose another one"):
        command._keys(ViewSettings(), actions=True)


def test_there_is_nothing_to_act_on_in_files(file):
    assert "leave out SOURCE and --no-redis" in refused(str(file), "--actions", "--port", "0")


def test_what_cannot_be_shown_is_answered_with_what_can(file, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_ARCHIVE_DIRECTORY", str(file.parent / "none"))
    assert "name what to show: hermes-queue view results/RUN.jsonl" in refused()
    assert f"name its JSONL files: {file.parent}/*.jsonl" in refused(
        str(file.parent), "--port", "0"
    )
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    done = CliRunner().invoke(cli, ["view", "--port", "0"])
    assert done.exit_code == 4
    assert "A file needs no Redis: hermes-queue view" in done.output


def test_a_cache_that_cannot_be_written_is_named_with_its_setting(file, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(file / "cache"))
    assert "set HERMES_QUEUE_PATHS_CACHE" in refused(str(file), "--port", "0")
    monkeypatch.setenv("HERMES_QUEUE_VIEW_TOKEN", TOKEN)
    assert "cannot be opened" in (said := refused(str(file), "--port", "0"))
    assert "set HERMES_QUEUE_PATHS_CACHE" in said


def test_labels_that_could_not_be_kept_are_refused_at_the_start(file, monkeypatch):
    directory = file.parent / "others"
    directory.mkdir()
    is_ours = os.access
    monkeypatch.setattr(  # root may write everywhere
        os, "access", lambda path, mode: Path(path) != directory and is_ours(path, mode)
    )
    for place in ("reviews.jsonl", "deeper/reviews.jsonl"):
        said = refused(str(file), "--reviews", str(directory / place), "--port", "0")
        assert "so nobody could label" in said


def test_a_unix_socket_is_its_owners_and_a_dead_one_is_replaced(tmp_path):
    path = tmp_path / "s"
    first = listen_unix(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigurationError, match="another server listens"):
        listen_unix(path)
    first.close()
    listen_unix(path).close()
    path.unlink()
    path.write_text("a file of somebody")
    with pytest.raises(ConfigurationError, match="a file of that name"):
        listen_unix(path)
    assert path.read_text() == "a file of somebody"


def test_allowed_hosts_are_names_with_or_without_a_port(file):
    for wrong in ("http://hq.example", "a b", "hq.example:x", "*", "[::1", "hq.example/"):
        assert "is not a host name" in refused(str(file), "--allow-host", wrong)
    assert allowed_host("HQ.example:8443").host == "hq.example"


@pytest.mark.parametrize(("file", "words"), [("out.jsonl", "view out.jsonl"), (None, "view")])
def test_the_end_of_a_run_says_how_to_look_at_its_records(file: str | None, words: str) -> None:
    said = command.hint(Path(file) if file else None)
    assert re.fullmatch(rf"look: (\S+/)?hermes-queue {words}", said)
