"""Every command and flag in the documentation exists, and is accepted as it is written."""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import io
import pkgutil
import re
import runpy
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from functools import cache
from pathlib import Path
from warnings import catch_warnings, simplefilter

import click
import pytest
from celery.bin.celery import celery as celery_command
from celery.worker.control import Panel
from pages import PAGES, ROOT, Block, all_blocks, commands, page_id, prose

import hermes_queue.broker.pool
from hermes_queue.broker.app import app
from hermes_queue.cli import cli
from hermes_queue.errors import ConfigurationError

pytestmark = pytest.mark.xdist_group("commands")
"""All parsers are made once, in one process."""
WORKER = copy.copy(celery_command.commands["worker"])
WORKER.params = [*WORKER.params, *app.user_options["worker"]]
"""Celery's worker with our options, which it gets from the loaded app."""
GENERATE = runpy.run_path(str(ROOT / "docs" / "generate_cli.py"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
SHELL = all_blocks("sh")
DEPLOYED = [
    ROOT / "docker-compose.yml",
    *sorted(path for path in (ROOT / "deploy").rglob("*") if path.is_file()),
]
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*").findall

FOREIGN = {
    *(
        "[",
        ".",
        "apt",
        "apt-get",
        "cat",
        "cd",
        "chmod",
        "cp",
        "curl",
        "docker",
        "echo",
        "export",
        "git",
    ),
    *(
        "grep",
        "head",
        "jq",
        "kill",
        "kubectl",
        "ls",
        "mkdir",
        "modal",
        "nproc",
        "openssl",
        "sed",
        "pip",
        "redis-cli",
    ),
    *("redis-server", "run-api", "source", "sudo", "sysctl", "systemctl", "tail", "test", "uv"),
}
"""Programs that are not ours: named in the documentation, not checked."""

FOREIGN_FLAGS = {
    **dict.fromkeys(
        ("--from", "--chown", "--chmod", "--link", "--mount", "--platform"), "Dockerfile"
    ),
    **dict.fromkeys(("--security", "--parents", "--exclude"), "Dockerfile"),
    **dict.fromkeys(
        ("--use-tis", "--use-rollout-logprobs", "--async-save", "--save", "--save-interval"),
        "slime",
    ),
    **dict.fromkeys(("--global-batch-size", "--num-rollout", "--eval-function-path"), "slime"),
    "--disable-rollout-global-dataset": "slime",
    "--no-deps": "pip",
    "--hash": "pip",
    "--generate-hashes": "uv",
    "--pool": "celery worker",
    **dict.fromkeys(("--destination", "--timeout"), "celery control"),
    **dict.fromkeys(("--from-literal", "--from-file"), "kubectl"),
    "--max": "Flower's --max_tasks, up to the underscore",
    "--chat-template": "vLLM and SGLang",
    "--jinja": "llama.cpp",
    "--allow-auto-truncate": "SGLang",
    "--logprobs-mode": "vLLM",
    "--max-num-batched-tokens": "vLLM",
    "--max-num-seqs": "vLLM",
    "--no-compile": "pip",
    "--reuid": "setpriv",
    "--security-opt": "docker",
    "--scale": "docker compose",
    "--tool-call-parser": "vLLM and SGLang",
    "--address": "flower",
    "--basic-auth": "flower",
}
"""Flags of those, as far as the text (not a shell block) speaks of them."""


def parse_click(command: click.Command, name: str, words: Sequence[str]) -> None:
    """Let click parse `words` as it would to run them."""
    context = command.make_context(name, list(words))
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        assert rest, f"{name} needs one of {command.list_commands(context)}"
        found, below, rest = command.resolve_command(context, rest)
        assert below is not None
        parse_click(below, f"{name} {found}", rest)


def parse_celery(words: Sequence[str]) -> None:
    """Celery's own commands read their values from a loaded app; here only the flags are parsed."""
    context = click.Context(celery_command)
    options, rest, _ = celery_command.make_parser(context).parse_args(list(words))
    assert options["app"] == "hermes_queue"
    name, *arguments = rest
    if name == "hermes":
        return parse_click(cli, "hermes", arguments)
    if name == "flower":
        return parse_flower(arguments)
    assert name in celery_command.commands, name
    command = WORKER if name == "worker" else celery_command.commands[name]
    values, _, _ = command.make_parser(click.Context(command)).parse_args(arguments)
    if name in ("inspect", "control"):
        # They may add some of ours.
        for module in pkgutil.iter_modules(hermes_queue.broker.pool.__path__):
            importlib.import_module(f"hermes_queue.broker.pool.{module.name}")
        assert values["command"] in Panel.meta, values
    return None


def parse_flower(arguments: Sequence[str]) -> None:
    import flower.options  # noqa: F401 - defines them
    from tornado.options import options

    known = {name.replace("_", "-") for name in options}
    given = {word[2:].partition("=")[0].replace("_", "-") for word in arguments}
    assert given <= known, given - known


def parse_make(words: Sequence[str]) -> None:
    targets = [word for word in words if "=" not in word]
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets), targets
    for variable in {word.partition("=")[0] for word in words} - set(targets):
        assert re.search(rf"^{variable} [?:]=", MAKEFILE, re.MULTILINE), variable


@cache
def help_flags(module: str) -> frozenset[str]:
    """The flags in the `--help` of a module whose parser cannot be had otherwise."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), catch_warnings():
        simplefilter("ignore", RuntimeWarning)  # another test may have imported it
        patch.setattr(sys, "argv", [module, "--help"])
        with suppress(SystemExit):
            runpy.run_module(module, run_name="__main__")
    return frozenset(FLAG(printed.getvalue()))


@cache
def producer_parser(name: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = GENERATE["parser_of"](name)
    return parser


def parse_python(block: Block, words: Sequence[str]) -> None:
    if words[0] != "-m":
        files = {other.says("file") for other in all_blocks("python") if other.page == block.page}
        assert words[0] in files or (ROOT / words[0]).is_file(), words
        return
    module, arguments = words[1], list(words[2:])
    if module == "producers":  # whose name is the reader's; all share these flags
        producer_parser("gsm8k").parse_args(arguments[1:])
        return
    name = module.removeprefix("producers.")
    if name != module and name in GENERATE["producer_modules"]():
        producer_parser(name).parse_args(arguments)
        return
    files = {other.says("file") for other in all_blocks("python") if other.page == block.page}
    if f"{module}.py" in files:
        return  # run by tests/e2e/test_own_pieces.py
    assert importlib.util.find_spec(module) is not None, module
    given = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    assert not given or given <= help_flags(module) | {"--help"}, given


def check(block: Block, words: list[str]) -> None:
    program, *arguments = words
    if program == "hermes-queue":
        parse_click(cli, program, arguments)
    elif program == "celery":
        parse_celery(arguments)
    elif program == "make":
        parse_make(arguments)
    elif program in ("python", "python3"):
        parse_python(block, arguments)
    elif program == "sh":
        assert (ROOT / arguments[0]).is_file(), arguments
    else:
        assert program in FOREIGN, f"unknown program {program}"


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_are_accepted_as_they_are_written(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(click.Path, "convert", lambda *_: Path("any"))  # files are the reader's
    for other in all_blocks("python"):
        if other.page == block.page and (name := other.says("file")):
            (tmp_path / name).write_text(other.text)
            monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    for words in commands(block):
        try:
            check(block, words)
        except (click.ClickException, click.exceptions.Exit, SystemExit) as error:
            message = error.format_message() if isinstance(error, click.ClickException) else error
            if "--help" not in words:
                pytest.fail(f"{' '.join(words)}: {message}")


def test_a_command_that_does_not_exist_is_found() -> None:
    block = Block(PAGES[0], 1, "sh", "", "")
    for line, error in (
        ("hermes-queue run shew RUN", click.UsageError),
        ("hermes-queue run show", click.UsageError),
        ("hermes-queue sink parquet --out x --shard-rose 5", click.UsageError),
        ("celery -A hermes_queue worker --concurency 5", click.UsageError),
        ("celery -A hermes_queue inspect nonsense", AssertionError),
        ("make demos", AssertionError),
        ("make demo DEMOS=1", AssertionError),
        ("python -m producers.swe_smith --item 2", ConfigurationError),
        ("python -m producers.nothing --items 2", AssertionError),
        ("python -m benchmarks factory --nonsense", AssertionError),
        ("teleport --now", AssertionError),
    ):
        with pytest.raises(error):
            check(block, line.split())


@cache
def known_flags() -> frozenset[str]:
    """Every flag of every command of ours, and of Celery's worker."""
    page = GENERATE["render"]()
    parsers = [producer_parser(name) for name in GENERATE["producer_modules"]()]
    worker = [name for p in WORKER.params for name in p.opts]
    ours = ("tests.chaos", "tools.make_bugs", "localmodal", "hermes_plugins.trainers.prime_rl")
    plugins = (path.parent.name for path in (ROOT / "benchmarks/plugins").glob("*/__main__.py"))
    rooms = ("", ".faults", ".operators", ".simulate", ".soak", *(f".plugins.{p}" for p in plugins))
    modules = (*ours, *(f"benchmarks{room}" for room in rooms))
    return frozenset(
        [
            *re.findall(r"(?<![\w-])--[a-z][a-z-]*", page),
            *(flag for parser in parsers for flag in parser._option_string_actions),
            *worker,
            *(flag for module in modules for flag in help_flags(module)),
            *FOREIGN_FLAGS,
        ]
    )


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_flags_in_the_text_exist(page: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", prose(page))
    foreign = ("bwrap", "--unshare", "pip ", "docker ")
    ours = [span for span in spans if not span.startswith(foreign)]
    named = {flag for span in ours for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)}
    assert named - known_flags() == set()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_in_the_text_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # also names what is gone
    check_spans(prose(page))


@pytest.mark.parametrize("path", DEPLOYED, ids=page_id)
def test_commands_that_deployment_files_tell_to_type_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    check_spans(text)
    named = {flag for span in re.findall(r"`(hermes-queue [^`\n]*)`", text) for flag in FLAG(span)}
    assert named - known_flags() == set()


def test_a_deployment_file_with_a_command_that_does_not_exist_is_found() -> None:
    with pytest.raises(AssertionError):
        check_spans("look at `hermes-queue limits show` first")


def check_spans(text: str) -> None:
    """Commands in backticks, as far as they are literal, exist."""
    for span in re.findall(r"`(hermes-queue [^`\n]*)`", text):
        command: click.Command = cli
        for word in span.split()[1:]:
            if not isinstance(command, click.Group) or not re.fullmatch(r"[a-z-]+", word):
                break
            below = command.get_command(click.Context(command), word)
            assert below is not None, span
            command = below
    for span in re.findall(r"`make ([^`\n]*)`", text):
        parse_make(span.split())


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    page = ROOT / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == GENERATE["render"](), "stale: run `make docs`"


def test_no_command_shows_a_mark_that_click_did_not_understand() -> None:
    """A `\\b` in a raw string is two characters, which click prints and runs the lines together."""

    def texts(command: click.Command) -> list[str]:
        below = command.commands.values() if isinstance(command, click.Group) else ()
        return [command.help or "", *(text for child in below for text in texts(child))]

    assert [text for text in texts(cli) if "\\b" in text] == []
