"""Tool-call parsers: what they read, and that no text makes them raise or slow."""

# ruff: noqa: RUF001 - the tags of DeepSeek are written so

from __future__ import annotations

import importlib.util
import json
import random
import sys
from typing import Any

import pytest

from hermes_queue import extensions
from hermes_queue.agent.parsers import from_renderers, load_parser
from hermes_queue.agent.parsers.base import ParsedReply
from hermes_queue.agent.parsers.from_renderers import FAMILIES, MAX_CHARS
from hermes_queue.errors import ConfigurationError

KNOWN = sorted({*extensions.known("parser"), *FAMILIES})
OWN = sorted(set(KNOWN) - set(FAMILIES))
HAS_RENDERERS = importlib.util.find_spec("renderers") is not None
"""In CI it has to be there: what needs it fails without it."""
needs_renderers = pytest.mark.skipif(not HAS_RENDERERS, reason="extra `renderers` not installed")
EVERY = [pytest.param(name, marks=needs_renderers) if name in FAMILIES else name for name in KNOWN]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "terminal",
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {"type": "string"},
                    "timeout_s": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                    "login": {"type": "boolean"},
                    "paths": {"$ref": "#/$defs/Paths"},
                },
                "$defs": {"Paths": {"type": "array", "items": {"type": "string"}}},
            },
        },
    }
]
LS = {"command": "ls -l"}

SAMPLES = {
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>terminal\n"
    '```json\n{"command": "ls -l"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="terminal">\n'
    '<｜DSML｜parameter name="command" string="true">ls -l</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "glm45": "<tool_call>terminal\n<arg_key>command</arg_key>\n<arg_value>ls -l</arg_value>\n"
    "</tool_call>",
    "glm47": "<tool_call>terminal<arg_key>command</arg_key><arg_value>ls -l</arg_value>"
    "</tool_call>",
    "hermes": '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls -l"}}\n</tool_call>',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.terminal:0"
    '<|tool_call_argument_begin|>{"command": "ls -l"}<|tool_call_end|><|tool_calls_section_end|>',
    "llama3_json": '<|python_tag|>{"name": "terminal", "parameters": {"command": "ls -l"}}',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="terminal">\n'
    '<parameter name="command">ls -l</parameter>\n</invoke>\n</minimax:tool_call>',
    "mistral": '[TOOL_CALLS]terminal[ARGS]{"command": "ls -l"}',
    "qwen3_coder": "<tool_call>\n<function=terminal>\n<parameter=command>\nls -l\n</parameter>\n"
    "</function>\n</tool_call>",
}
"""One call of each format, as the models' own templates write it."""


def parse(name: str, text: str, **more: Any) -> ParsedReply:
    return load_parser(name).parse(text, TOOLS, **more)


def read(name: str, text: str) -> list[tuple[str | None, str, str]]:
    return [(call.name, call.arguments, call.status) for call in parse(name, text).calls]


# --- every format -----------------------------------------------------------------------


def test_every_parser_has_a_sample() -> None:
    assert sorted(SAMPLES) == KNOWN


@pytest.mark.parametrize("name", EVERY)
def test_a_call_between_text_and_reasoning_is_taken_out(name: str) -> None:
    text = f"<think>\nhm\n</think>\n\nI look.\n{SAMPLES[name]}"
    reply = parse(name, text)
    (call,) = reply.calls
    assert (call.name, json.loads(call.arguments), call.status) == ("terminal", LS, "ok")
    assert (reply.content, reply.reasoning) == ("I look.", "hm")
    assert call.raw in text[slice(*call.span)]


@pytest.mark.parametrize("name", EVERY)
def test_a_text_without_calls_is_content_as_it_is(name: str) -> None:
    assert parse(name, " Done. {x} <b>\n") == ParsedReply((), " Done. {x} <b>\n", None)
    assert parse(name, "") == ParsedReply((), None, None)


@pytest.mark.parametrize("name", EVERY)
def test_a_call_that_is_cut_off_is_ok_only_with_all_of_its_arguments(name: str) -> None:
    sample = SAMPLES[name]
    statuses = []
    for end in range(len(sample) // 2, len(sample)):
        for call in parse(name, sample[:end]).calls:
            statuses.append(call.status)
            if call.status == "ok":
                assert (call.name, json.loads(call.arguments)) == ("terminal", LS)
    assert set(statuses) - {"ok"}


@pytest.mark.parametrize("name", EVERY)
def test_reasoning_is_left_alone_when_the_server_told_it_apart(name: str) -> None:
    text = "<think> is a tag"
    assert parse(name, text, reasoning=False).content == text


@pytest.mark.parametrize("name", EVERY)
def test_reasoning_without_its_opening_tag_was_begun_by_the_template(name: str) -> None:
    reply = parse(name, f"hm\n</think>\n{SAMPLES[name]}")
    assert (reply.reasoning, len(reply.calls)) == ("hm", 1)


@pytest.mark.parametrize("name", OWN)
def test_reasoning_that_is_cut_off_is_no_content(name: str) -> None:
    assert parse(name, "<think>so far") == ParsedReply((), None, "so far")


@pytest.mark.parametrize("name", OWN)
def test_a_call_ends_reasoning_that_was_never_closed(name: str) -> None:
    sample = SAMPLES[name]
    reply = parse(name, f"<think>so far {sample}")
    assert (reply.reasoning, len(reply.calls)) == ("so far", 1)


def test_a_draft_within_reasoning_is_no_call() -> None:
    assert parse("hermes", f"<think>{SAMPLES['hermes']}</think>no").calls == ()


# --- hermes -----------------------------------------------------------------------------


def test_hermes_keeps_the_arguments_as_the_model_wrote_them() -> None:
    text = (
        '<tool_call>{"name":"terminal","arguments":{"command" :"a\\u0062",  "x":1.50}}</tool_call>'
    )
    assert read("hermes", text) == [("terminal", '{"command" :"a\\u0062",  "x":1.50}', "ok")]


def test_hermes_reads_several_calls_and_the_text_around_them() -> None:
    call = SAMPLES["hermes"]
    reply = parse("hermes", f"before\n{call}\nbetween\n{call}{call}\nafter")
    assert [c.status for c in reply.calls] == ["ok", "ok", "ok"]
    assert (reply.content or "").split() == ["before", "between", "after"]


def test_hermes_arguments_may_hold_its_own_tags() -> None:
    inner = json.dumps({"command": f"echo '{SAMPLES['hermes']}'"})
    text = f'<tool_call>\n{{"name": "terminal", "arguments": {inner}}}\n</tool_call>'
    assert read("hermes", text) == [("terminal", inner, "ok")]


def test_hermes_arguments_that_were_encoded_twice_are_decoded_once() -> None:
    text = json.dumps({"name": "terminal", "arguments": '{"command": "ls"}'})
    assert read("hermes", f"<tool_call>{text}</tool_call>") == [
        ("terminal", '{"command": "ls"}', "ok")
    ]


def test_hermes_forgives_a_missing_closing_tag_after_whole_json() -> None:
    text = SAMPLES["hermes"].removesuffix("\n</tool_call>")
    assert [call[2] for call in read("hermes", text)] == ["ok"]
    assert [call[2] for call in read("hermes", text + "\n" + text)] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("body", "name", "status"),
    [
        ('{"name": "terminal", "arguments": {"command": "ls"}}}', "terminal", "invalid_json"),
        ("{'name': 'terminal', 'arguments': {}}", None, "invalid_json"),
        ('{"name": "terminal", "arguments": {"command": "a\nb"}}', "terminal", "invalid_json"),
        ("terminal ls", None, "invalid_json"),
        ("[]", None, "invalid_json"),
        ("", None, "invalid_json"),
        ("[" * 100_000, None, "invalid_json"),
        ('{"a": ' * 100_000, None, "invalid_json"),
        ('{"a": ' + "1" * 5000 + "}", None, "invalid_json"),
        ('{"arguments": {}}', None, "missing_name"),
        ('{"name": 7, "arguments": {}}', None, "missing_name"),
        ('{"name": "terminal", "arguments": [1]}', "terminal", "invalid_arguments"),
        ('{"name": "terminal", "arguments": "ls"}', "terminal", "invalid_arguments"),
    ],
)
def test_hermes_says_what_is_wrong_with_a_call(body: str, name: str | None, status: str) -> None:
    text = f"<tool_call>\n{body}\n</tool_call> after"
    reply = parse("hermes", text)
    assert [(c.name, c.status) for c in reply.calls] == [(name, status)]
    assert reply.content == "after"


def test_hermes_a_call_without_arguments_has_an_empty_object() -> None:
    assert read("hermes", '<tool_call>{"name": "submit"}</tool_call>') == [("submit", "{}", "ok")]


@pytest.mark.parametrize(
    "text",
    ['{"name": "terminal", "arguments": {"command": "l', "{", "", '{"name": tru', '{"a":"\\u0'],
)
def test_hermes_a_text_that_ends_inside_a_call_leaves_it_unclosed(text: str) -> None:
    (call,) = parse("hermes", f"<tool_call>{text}").calls
    assert call.status == "unclosed"


# --- qwen3_coder ------------------------------------------------------------------------


def coder(*parameters: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function=terminal>\n{inner}</function>\n</tool_call>"


def test_coder_values_get_the_types_of_the_tool() -> None:
    text = coder(
        ("command", "5"), ("timeout_s", "2.5"), ("login", "True"), ("paths", '["a"]'), ("new", "7")
    )
    ((_, arguments, status),) = read("qwen3_coder", text)
    assert status == "ok"
    assert json.loads(arguments) == {
        "command": "5",
        "timeout_s": 2.5,
        "login": True,
        "paths": ["a"],
        "new": "7",
    }


def test_coder_values_that_do_not_fit_their_type_are_left_for_the_tool_to_refuse() -> None:
    ((_, arguments, _),) = read("qwen3_coder", coder(("timeout_s", "soon"), ("paths", "[1] x")))
    assert json.loads(arguments) == {"timeout_s": "soon", "paths": "[1] x"}


def test_coder_values_keep_their_own_white_space_and_tags() -> None:
    value = "\n  if a < b:\n\tprint('</function>')\n"
    ((_, arguments, _),) = read("qwen3_coder", coder(("command", value)))
    assert json.loads(arguments) == {"command": value}


def test_coder_null_is_none_where_the_tool_allows_it() -> None:
    ((_, arguments, _),) = read("qwen3_coder", coder(("timeout_s", "null"), ("command", "null")))
    assert json.loads(arguments) == {"timeout_s": None, "command": "null"}


def test_coder_the_outer_tags_and_the_last_closing_tag_may_be_missing() -> None:
    bare = SAMPLES["qwen3_coder"].removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    forgotten = bare.replace("</parameter>\n", "")
    for text in (bare, f"{bare}\n{bare}", f"{forgotten}\n{bare}"):
        assert {call[2] for call in read("qwen3_coder", text)} == {"ok"}
        assert len(read("qwen3_coder", text)) == text.count("<function=")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("<tool_call>", "unclosed"),
        ("<tool_call>\n<function=ter", "unclosed"),
        ("<tool_call>\n<function=terminal>\n<parameter=command>\nls", "unclosed"),
        (
            "<tool_call>\n<function=terminal>\n<parameter=command>\nls\n</parameter>\n</fun",
            "unclosed",
        ),
        ("<tool_call>\n<function=>\n</function>\n</tool_call>", "missing_name"),
        ('<tool_call>{"name": "x"}</tool_call>', "malformed"),
        ("<tool_call>\n<function=terminal>\nls\n</function>\n</tool_call>", "malformed"),
    ],
)
def test_coder_says_what_is_wrong_with_a_call(text: str, status: str) -> None:
    assert [call[2] for call in read("qwen3_coder", text)] == [status]


# --- llama3_json and mistral ------------------------------------------------------------


def test_llama_reads_calls_without_its_tag_and_several_of_them() -> None:
    call = '{"name": "terminal", "parameters": {"command": "ls"}}'
    other = '{"type": "function", "name": "submit", "parameters": {}}'
    assert read("llama3_json", f"{call}; {other}\n{call}") == [
        ("terminal", '{"command": "ls"}', "ok"),
        ("submit", "{}", "ok"),
        ("terminal", '{"command": "ls"}', "ok"),
    ]


def test_llama_an_object_that_is_no_call_is_text() -> None:
    text = 'The answer is {"name": "Ada", "age": 36} or {"name": "x"'
    assert parse("llama3_json", text) == ParsedReply((), text, None)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"name": "terminal", "parameters": {"command": "l', "unclosed"),
        ('{"name": "terminal", "parameters": {command: "l"}}', "invalid_json"),
        ('<|python_tag|>brave_search.call(query="x")', "malformed"),
        ('<|python_tag|>{"parameters": {}}', "missing_name"),
        ('{"name": "terminal", "parameters": 7}', "invalid_arguments"),
    ],
)
def test_llama_says_what_is_wrong_with_a_call(text: str, status: str) -> None:
    assert [call[2] for call in read("llama3_json", text)] == [status]


def test_mistral_reads_both_of_its_forms() -> None:
    old = (
        '[TOOL_CALLS] [{"name": "terminal", "arguments": {"command": "ls"}}, '
        '{"name": "submit", "arguments": "{}"}]'
    )
    new = '[TOOL_CALLS]terminal[CALL_ID]a1[ARGS]{"command": "ls"}[TOOL_CALLS]submit{}'
    expected = [("terminal", '{"command": "ls"}', "ok"), ("submit", "{}", "ok")]
    assert read("mistral", old) == read("mistral", new) == expected
    assert parse("mistral", f"text {old} after").content == "text  after"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('[TOOL_CALLS]terminal[ARGS]{"command": "l', "unclosed"),
        ("[TOOL_CALLS]terminal[ARGS]{command}", "invalid_json"),
        ("[TOOL_CALLS]", "unclosed"),
        ("[TOOL_CALLS]!", "malformed"),
        ('[TOOL_CALLS][{"arguments": {}}]', "missing_name"),
    ],
)
def test_mistral_says_what_is_wrong_with_a_call(text: str, status: str) -> None:
    assert [call[2] for call in read("mistral", text)] == [status]


# --- whatever is written ----------------------------------------------------------------

FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<function=", "<function=terminal>"),
    *("</function>", "<parameter=", "<parameter=command>", "</parameter>", "<|python_tag|>"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "{", "}", "[", "]", '"', "\\", ":", ",", ";", "\n"),
    *('"name"', '"arguments"', '"parameters"', '"terminal"', '{"name": "terminal", ', "1e999", "-"),
    *("NaN", "tru", "\\u", "\ud800", "\0", "é", "｜", "<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<arg_key>", "</arg_key>", "<arg_value>"),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    *("<minimax:tool_call>", '<invoke name="a">', "<｜DSML｜invoke", "```json", " "),
]


def texts(seed: int, count: int) -> list[str]:
    """Texts near to valid ones and far from them."""
    dice = random.Random(seed)
    made = []
    for _ in range(count):
        parts: list[str] = []
        for _ in range(dice.randrange(1, 12)):
            kind = dice.random()
            if kind < 0.3:
                sample = dice.choice(list(SAMPLES.values()))
                begin = dice.randrange(len(sample)) if dice.random() < 0.3 else 0
                parts.append(sample[begin : dice.randrange(begin, len(sample) + 1)])
            elif kind < 0.5:
                sample = list(dice.choice(list(SAMPLES.values())))
                for _ in range(dice.randrange(1, 6)):
                    sample[dice.randrange(len(sample))] = dice.choice(FRAGMENTS)
                parts.append("".join(sample))
            elif kind < 0.9:
                parts += dice.choices(FRAGMENTS, k=dice.randrange(1, 8))
            else:
                parts.append(dice.randbytes(dice.randrange(40)).decode("latin-1"))
        made.append("".join(parts))
    return made


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text or "{}"), dict)
    except (ValueError, RecursionError):
        return False


def check(text: str, reply: ParsedReply, name: str) -> None:
    at = 0
    for call in reply.calls:
        begin, end = call.span
        assert at <= begin < end <= len(text), "spans are disjoint and in order"
        at = end
        if call.status == "ok":
            assert call.name
            assert isinstance(json.loads(call.arguments), dict)
        elif call.name and call.status != "unknown_tool":
            assert not is_object(call.arguments), "a toolbox would run it"
    if name in OWN:
        lost = len(text) - sum(len(c.raw) for c in reply.calls)
        assert len(reply.content or "") <= lost


@pytest.mark.parametrize("name", EVERY)
def test_no_text_makes_a_parser_raise(name: str) -> None:
    parser = load_parser(name)
    for text in texts(seed=20, count=3000 if name in OWN else 300):
        check(text, parser.parse(text, TOOLS), name)
        check(text, parser.parse(text, (), reasoning=False), name)


@pytest.mark.parametrize("name", EVERY)
def test_every_prefix_of_a_valid_reply_can_be_read(name: str) -> None:
    parser = load_parser(name)
    text = f"<think>a</think>b {SAMPLES[name]} c {SAMPLES[name]}"
    for end in range(len(text)):
        check(text[:end], parser.parse(text[:end], TOOLS), name)


HOSTILE = [
    '<tool_call>{"":":","</tool_call>',
    '{"name":1,"a":[',
    '<tool_call>{"name":',
    '<tool_call>{"</tool_call>":',
    '<tool_call>{"a":"</tool_call>',
    "<tool_call>{x</tool_call>",
    '<tool_call>{"a":1}x',
    "[TOOL_CALLS]a{",
    "<tool_call><function=a><parameter=b>",
    "<tool_call><function=a",
    "<function=a><parameter=b></parameter>",
    '{"name":',
    '{"name":"',
    '<|python_tag|>{"name":',
    '[TOOL_CALLS]a{"b":[',
    '[TOOL_CALLS][{"a":1},',
    "<think>",
    "{",
    " ",
    "<tool_call> ",
]


class Read(str):
    """A text that counts the characters read of it by `find` and by slices."""

    seen = 0

    def find(self, needle: str, start: int = 0, *more: int) -> int:  # type: ignore[override]
        found = super().find(needle, start, *more)
        Read.seen += (found if found != -1 else len(self)) - start
        return found

    def __getitem__(self, where: Any) -> str:
        part = super().__getitem__(where)
        Read.seen += len(part)
        return part


class CountingDecoder(json.JSONDecoder):
    def raw_decode(self, text: str, start: int = 0) -> tuple[Any, int]:
        try:
            value, end = super().raw_decode(text, start)
        except json.JSONDecodeError as error:
            Read.seen += (len(text) if "Untermi" in error.msg else error.pos) - start
            Read.seen += error.pos  # the error counts the lines before it
            raise
        except RecursionError:
            Read.seen += len(text) - start
            raise
        Read.seen += end - start
        return value, end


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_is_read_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch, name: str, piece: str
) -> None:
    monkeypatch.setattr("hermes_queue.agent.parsers.base._decoder", CountingDecoder())
    text = Read("text " + piece * (40_000 // len(piece)))
    Read.seen = 0
    load_parser(name).parse(text, TOOLS)
    assert Read.seen < 40 * len(text)


@needs_renderers
@pytest.mark.parametrize("piece", ["x ", "<｜DSML｜invoke", "ls -l "])
def test_the_library_decodes_no_text_again_and_again(
    monkeypatch: pytest.MonkeyPatch, piece: str
) -> None:
    decoded = 0

    def counting(number: int) -> str:
        nonlocal decoded
        decoded += 1
        return chr(number)

    parser, sample = load_parser("deepseek_v4"), SAMPLES["deepseek_v4"]
    parser.parse(sample)
    monkeypatch.setattr(from_renderers, "chr", counting, raising=False)
    filler = piece * (4_000 // len(piece))
    text = sample.replace("ls -l", filler) if piece == "ls -l " else filler + sample
    parser.parse(text, TOOLS)
    assert decoded < 40 * len(text)


@needs_renderers
def test_the_library_is_not_given_calls_that_it_would_read_for_minutes() -> None:
    text = SAMPLES["deepseek_v4"].replace("ls -l", "x" * MAX_CHARS)
    [call] = load_parser("deepseek_v4").parse(text, TOOLS).calls
    assert (call.status, call.raw in text) == ("malformed", True)


@pytest.mark.parametrize("name", EVERY)
def test_a_call_after_much_text_stands_where_it_was_written(name: str) -> None:
    before = "Some text. " * 9
    plain = load_parser(name).parse(SAMPLES[name], TOOLS)
    late = load_parser(name).parse(before + SAMPLES[name], TOOLS)
    moved = [call.span[0] - len(before) for call in late.calls]
    assert moved == [call.span[0] for call in plain.calls]
    assert late.content == before.strip()


# --- names ------------------------------------------------------------------------------


def test_an_unknown_parser_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"hermes.*kimi_k2.*qwen3_coder"):
        load_parser("hermess")
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        load_parser("no.such.module:PARSER")


def test_a_parser_of_the_users_own_is_found_by_its_path() -> None:
    assert load_parser("hermes_queue.agent.parsers.hermes:PARSER").name == "hermes"


@pytest.mark.parametrize("missing", ["renderers", "httpx"])
def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "httpx" and not HAS_RENDERERS:
        pytest.skip("the library itself is missing")
    for module in [m for m in sys.modules if m.partition(".")[0] == "renderers"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=r"hermes-queue\[renderers\]"):
        load_parser("kimi_k2")
