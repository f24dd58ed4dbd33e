"""`hermes-queue view`: pages about runs, groups and trajectories."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_plugins.view.settings import ViewSettings
from hermes_queue.errors import ConfigurationError, RedisUnavailable
from hermes_queue.settings import (
    ArchiveSettings,
    PathSettings,
    RedisSettings,
    check_environment,
)
from hermes_queue.terminal.output import echo

if TYPE_CHECKING:
    from hermes_plugins.view.guard import Authority
    from hermes_plugins.view.site import ViewSite
    from hermes_plugins.view.tokens import Keys, Role
    from hermes_queue.ledger import Ledger

PORT = 9820
_TIMEOUT_S = 5.0
"""Shorter than usual: a person waits."""
_HELP = """Serve pages about runs, groups and trajectories to a browser, until stopped.

SOURCE is a directory of an archive, a JSONL file or a folder with Parquet files. Without one, the
pages show what is in Redis and in the archive of this deployment. They change nothing, unless
--actions is given.

\b
hermes-queue view results/*.jsonl             # what producers wrote; no Redis needed
hermes-queue view                             # the deployment, as it changes
hermes-queue view --unix-socket ~/view.sock   # for hosts that others use, too

It prints the address to open. What is behind its # is a secret that opens the pages: whoever has
it sees every transcript. Ctrl-C ends it.

\b
exit codes: 0 ended by Ctrl-C or SIGTERM
  2 wrong flag, setting or source; the port is in use; the extra view is not installed
  4 Redis does not answer
"""


@dataclass(frozen=True)
class ViewOptions:
    """The command line."""

    sources: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    port: int = PORT
    unix_socket: Path | None = None
    allow_host: tuple[str, ...] = ()
    no_redis: bool = False
    actions: bool = False
    tokenizer: Path | None = None
    reviews: Path | None = None
    findings: tuple[Path, ...] = ()


@click.command(help=_HELP)
@click.argument(
    "sources", nargs=-1, metavar="[SOURCE ...]", type=click.Path(path_type=Path, exists=True)
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0 = any free one.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Others than loopback need HERMES_QUEUE_VIEW_TOKEN.",
)
@click.option(
    "--unix-socket",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Listen on this socket, which only you can use, instead of an address.",
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME[:PORT]",
    help="A further name of the server, such as that of a proxy in front; repeatable.",
)
@click.option(
    "--no-redis", is_flag=True, help="Show files alone: the archive, if no SOURCE is given."
)
@click.option(
    "--actions",
    is_flag=True,
    help="Let the role operate pause, cancel, retry and requeue, through "
    "HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="tokenizer.json of the model, to show token ids as text. Needs the package tokenizers.",
)
@click.option(
    "--reviews",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Let whoever looks label trajectories, and keep the labels in this file.",
)
@click.option(
    "--findings",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    multiple=True,
    metavar="FILE",
    help="Findings of judges, as JSON lines, to show at the passages they quote; repeatable.",
)
def view(**flags: Any) -> None:
    """Serve pages to a browser."""
    options = ViewOptions(**flags)
    check_environment()
    check_libraries()
    from hermes_queue.telemetry import logs

    logs.configure()
    _serve(options)


def hint(path: Path | None) -> str:
    """The command line that shows records of a run, with what has to be installed for it."""
    program = "hermes-queue"
    installed = Path(sys.executable).with_name(program)
    if installed.is_file() and shutil.which(program) != str(installed):
        here = Path.cwd()
        program = str(installed.relative_to(here) if installed.is_relative_to(here) else installed)
    command = shlex.join([program, "view", *([str(path)] if path else [])])
    missing = not find_spec("starlette") or not find_spec("uvicorn")
    command = f"look: {command}"
    return f"{command}   # needs pip install 'hermes-queue[view]'" if missing else command


def check_libraries() -> None:
    """Raises ConfigurationError: the extra `view` is not installed."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"the pages need the package {error.name}: pip install 'hermes-queue[view]'"
        ) from error


def _serve(options: ViewOptions) -> None:
    from hermes_plugins.view.app import make_app
    from hermes_plugins.view.guard import HostNames
    from hermes_plugins.view.routes import every_route
    from hermes_plugins.view.serving import PageServer, numeric

    allowed = _allowed(options)
    check_reach(options.host, allowed, options.unix_socket, settings := ViewSettings())
    if options.actions and (options.sources or options.no_redis):
        raise ConfigurationError(
            "--actions acts on a deployment in Redis, and files alone are shown: leave it out, or "
            "leave out SOURCE and --no-redis"
        )
    with ExitStack() as stack:
        bound = stack.enter_context(closing(_listening(options)))
        address, port = numeric(bound)
        port = port or options.port
        keys = _keys(settings, actions=options.actions)
        site = stack.enter_context(open_site(options, keys, port))
        where = _where(options, address, port, allowed)
        names = HostNames.of(address, port, allowed, name=options.host)
        server = PageServer(make_app(site, names, every_route()), ending=site.stopping.set)
        chosen = () if sys.stdout.isatty() else _chosen(settings)
        for line in greeting(options, keys, where, chosen):
            echo(line)
        for line in _hints(address, where):
            echo(line, err=True)
        server.run([bound])
    if options.unix_socket:
        options.unix_socket.unlink(missing_ok=True)


def _allowed(options: ViewOptions) -> list[Authority]:
    from hermes_plugins.view.guard import allowed_host

    try:
        return [allowed_host(text) for text in options.allow_host]
    except ValueError as error:
        raise ConfigurationError(f"--allow-host: {error}") from error


def check_reach(
    host: str, allowed: Sequence[Authority], unix_socket: Path | None, settings: ViewSettings
) -> None:
    """Refuse an address that others reach, unless that was meant.

    Raises:
        ConfigurationError: no token was chosen for it, or no name.
    """
    from hermes_plugins.view.guard import is_loopback, is_wildcard
    from hermes_plugins.view.serving import address_of

    if unix_socket or is_loopback(address := address_of(host)):
        return
    if settings.token is None:
        raise ConfigurationError(
            f"others reach {host}: choose a token for them in HERMES_QUEUE_VIEW_TOKEN, or leave "
            f"--host out and forward the port: ssh -L {PORT}:127.0.0.1:{PORT} HOST"
        )
    if is_wildcard(address) and not allowed:
        raise ConfigurationError(
            f"{address} stands for every address: say by --allow-host NAME under which name "
            "browsers come, so that a page of somebody else cannot come under its own"
        )


def _listening(options: ViewOptions) -> socket.socket:
    from hermes_plugins.view.serving import listen, listen_unix

    if options.unix_socket:
        return listen_unix(options.unix_socket)
    return listen(options.host, options.port)


def _keys(settings: ViewSettings, *, actions: bool) -> Keys:
    from hermes_plugins.view.tokens import Keys, check_chosen, kept_token

    directory = PathSettings().cache / "view"
    chosen: dict[Role, Any] = {"view": settings.token}
    if actions:
        chosen["operate"] = settings.operator_token
    tokens: dict[Role, str] = {}
    for role, secret in chosen.items():
        if secret is not None:
            tokens[role] = check_chosen(secret.get_secret_value(), _setting(role))
        else:
            tokens[role] = kept_token(directory, f"{role}.token")
    if len(set(tokens.values())) < len(tokens):
        raise ConfigurationError(
            "HERMES_QUEUE_VIEW_OPERATOR_TOKEN is that of the role view; choose another one"
        )
    return Keys(tokens)


def _setting(role: Role) -> str:
    return f"HERMES_QUEUE_VIEW_{'OPERATOR_' * (role == 'operate')}TOKEN"


@contextmanager
def open_site(options: ViewOptions, keys: Keys, port: int) -> Iterator[ViewSite]:
    """What is shown, opened; closed with the block."""
    from hermes_plugins.view.assets import Assets
    from hermes_plugins.view.findings import FindingFiles
    from hermes_plugins.view.index.index import Index
    from hermes_plugins.view.live import LivePoller
    from hermes_plugins.view.present import Decoder
    from hermes_plugins.view.site import ViewSite
    from hermes_plugins.view.sources.opening import index_path, open_sources
    from hermes_plugins.view.transcripts import Transcripts
    from hermes_queue.bodies.reviews import ReviewFile

    operator = ViewSettings().operator_redis_url if options.actions else None
    operator_url = operator.get_secret_value() if operator else None
    reviews = ReviewFile(options.reviews) if options.reviews else None
    findings = FindingFiles(options.findings) if options.findings else None
    if reviews:
        reviews.check_writable()
    with ExitStack() as stack:
        try:
            paths = options.sources
            if options.no_redis and not paths:
                paths = (_archive(),)
            sources = open_sources(paths)
        except RedisUnavailable as error:
            raise RedisUnavailable(
                f"{error}. A file needs no Redis: hermes-queue view results/RUN.jsonl; the "
                "archive alone: hermes-queue view --no-redis"
            ) from error
        in_redis = any(source.kind == "redis" for source in sources)
        ledger = stack.enter_context(_ledger()) if in_redis else None
        if ledger and operator_url:
            _check_operator(operator_url)
        made = Index(index_path(sources), sources, labels_of=options.reviews)
        index = stack.enter_context(closing(made))
        index.start()
        seen = partial(_overview, ledger) if ledger else None
        live = stack.enter_context(closing(LivePoller(seen, index))) if seen else None
        yield ViewSite(
            keys=keys,
            cookie=f"hq_view_{port}",
            deployment=RedisSettings().prefix if ledger else "",
            version=_version(),
            assets=Assets(),
            index=index,
            sources=[{"kind": each.kind, "name": each.title} for each in sources],
            ledger=ledger,
            overview=seen,
            live=live,
            transcripts=Transcripts(ledger, operator_url) if ledger else None,
            tokenizer=Decoder(options.tokenizer) if options.tokenizer else None,
            actions=options.actions,
            reviews=reviews,
            findings=findings,
            operator_url=operator_url,
        )


def _archive() -> Path:
    if not (directory := ArchiveSettings().directory).is_dir():
        raise ConfigurationError(
            f"there is no archive in {directory} (HERMES_QUEUE_ARCHIVE_DIRECTORY); name what to "
            "show: hermes-queue view results/RUN.jsonl"
        )
    return directory


def _overview(ledger: Ledger) -> Mapping[str, Any]:
    from hermes_queue.cli.overview import overview

    seen = overview(ledger)
    return {**asdict(seen), "oldest": seen.oldest}


@contextmanager
def _ledger() -> Iterator[Ledger]:
    from hermes_queue.ledger import Ledger

    with closing(Ledger.connect(timeout_s=_TIMEOUT_S)) as ledger:
        yield ledger


def _check_operator(url: str) -> None:
    """Raises RedisUnavailable: the actions' Redis refuses us or does not answer."""
    from hermes_queue.keyspace.connection import explained
    from hermes_queue.ledger import Ledger

    try:
        with explained(url), closing(Ledger.connect(url, timeout_s=_TIMEOUT_S)) as ledger:
            ledger.client.ping()
    except RedisUnavailable as error:
        ours = "HERMES_QUEUE_VIEW_OPERATOR_REDIS_URL"
        raise RedisUnavailable(str(error).replace("HERMES_QUEUE_REDIS_URL", ours)) from error


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("hermes-queue")
    except PackageNotFoundError:
        return "?"


def _chosen(settings: ViewSettings) -> tuple[Role, ...]:
    """Roles whose token somebody chose, who therefore knows it: it need not get into a log."""
    tokens: dict[Role, Any] = {"view": settings.token, "operate": settings.operator_token}
    return tuple(role for role, token in tokens.items() if token is not None)


def greeting(
    options: ViewOptions, keys: Keys, where: Authority, hidden: Sequence[Role] = ()
) -> Iterator[str]:
    """What is printed: an address for each role, and how to come to a unix socket.

    Of the roles in `hidden`, the setting is named instead of the token in it.
    """
    port = "" if where.port is None else f":{where.port}"
    roles: tuple[Role, ...] = ("view", "operate") if options.actions else ("view",)
    for role in roles:
        token = f"${_setting(role)}" if role in hidden else keys.token(role)
        address = f"http://{where.host}{port}/#token={token}"
        yield address if len(roles) == 1 else f"{role + ':':9}{address}"
    if options.unix_socket:
        path = options.unix_socket.absolute()
        yield f"from your machine, first: ssh -L {where.port}:{path} {socket.gethostname()}"


def _hints(address: str, where: Authority) -> Iterator[str]:
    """What to do with the address."""
    from hermes_plugins.view.guard import is_loopback

    if address and not is_loopback(address):
        yield "not encrypted: put a proxy with TLS in front (docs/plugins/view.md)"
    elif address and os.environ.get("SSH_CONNECTION"):
        forward = f"{where.port}:{where.host}:{where.port}"
        yield f"from your machine, first: ssh -L {forward} {socket.gethostname()}"
    yield "open it in a browser; Ctrl-C ends the server"


def _where(
    options: ViewOptions, address: str, port: int, allowed: Sequence[Authority]
) -> Authority:
    """The name under which a browser comes."""
    from hermes_plugins.view.guard import Authority, is_wildcard, of_address

    if is_wildcard(address):
        return Authority(allowed[0].host, allowed[0].port or port)
    return of_address(options.host if address else "localhost", port) or Authority(address, port)
