"""One trajectory in a terminal: head, transcript, verdict, patch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.rule import Rule
from rich.text import Text

from hermes_plugins.view import present
from hermes_plugins.view.present.conversation import ShownCall, ShownMessage
from hermes_plugins.view.present.shapes import as_json, number
from hermes_plugins.view.present.texts import ShownText
from hermes_queue.terminal.escapes import visible

CUT_BYTES = 16 << 10
"""Of each text of a transcript, unless single messages are asked for."""
_ROLES = {"system": "blue", "user": "blue", "assistant": "green", "tool": "cyan"}
_SIGNS = {"+": "green", "-": "red", "\\": "dim"}
_READABLE = {1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14}
"""Colours that can be read on a light and on a dark background."""
_WEIGHTS = {"inverse": "reverse", "ctl": "bold magenta"}


def styled(shown: ShownText, style: str = "") -> Text:
    """A text with its marks as styles."""
    text = shown["text"]
    made = Text(text, style=style)
    places = None if text.isascii() or max(text) < "\U00010000" else _places(text)
    for start, end, name in shown["marks"]:
        own = _style(name)
        if own and places is not None:
            made.stylize(own, places[start], places[end])
        elif own:
            made.stylize(own, start, end)
    if shown["cut"]:
        made.append(f"\n[… {shown['bytes']} bytes in all]", style="dim italic")
    return made


def _places(text: str) -> list[int]:
    """The index in `text` of each UTF-16 code unit."""
    found: list[int] = []
    for index, character in enumerate(text):
        found += [index] * (2 if character > "\uffff" else 1)
    return [*found, len(text)]


def _style(name: str) -> str:
    word = name.removeprefix("ansi-")
    kind, _, colour = word.partition("-")
    if kind == "fg":
        return f"color({colour})" if int(colour) in _READABLE else ""
    if kind == "bg":  # a background of theirs could hide a colour of the terminal's
        return "underline"
    return _WEIGHTS.get(word, word)


def trajectory(raw: Mapping[Any, Any]) -> Iterator[RenderableType]:
    """Head, transcript, verdict and patch, piece by piece."""
    yield from heading(raw)
    yield from transcript(raw)
    yield from verdict(raw)
    yield from patch(raw)


def heading(raw: Mapping[Any, Any]) -> Iterator[RenderableType]:
    """Who, what, how it ended, where the time went."""
    head = present.head(raw)
    sign, style = mark(raw)
    line = Text.assemble((f"{sign} {head['id']}", f"bold {style}"))
    score = "no score" if head["score"] is None else f"score {head['score']:g}"
    reason = present.verifier(raw)["reason"]
    for part in (score, reason, head["stop_reason"], head["status"]):
        line.append(f"  {part}" if part else "")
    yield line
    sample = "" if head["sample"] is None else f" #{head['sample']} of {head['group_size'] or 1}"
    agent = " ".join(filter(None, (head["agent"]["kind"], head["agent"]["model"])))
    yield Text(f"  {head['env']} {head['instance']}{sample}, group {head['group']}, {agent}")
    yield Text(f"  {', '.join(_figures(head))}", style="dim")
    stages = [f"{each['stage']} {each['seconds']:.1f} s" for each in present.stages(raw)]
    if stages:
        yield Text(f"  {' │ '.join(stages)}", style="dim")
    for name, value in head["rewards"].items():
        yield Text(f"  reward {name}: {value:g}")
    if head["evaluation"]:
        yield Text("  of an evaluation: nothing may be trained on it", style="yellow")
    others = [
        f"{each['n']} {each['label']} {each['turns']} turns" for each in present.branches(raw)
    ]
    if others:
        yield Text(f"  conversations (--branch N): {', '.join(others)}", style="dim")
    yield from _failures(raw, head)


def _figures(head: Mapping[str, Any]) -> Iterator[str]:
    usage, policy = head["usage"], head["policy"]
    yield f"{head['turns']} turns, {head['messages']} messages"
    yield f"{usage['prompt_tokens'] or 0} + {usage['completion_tokens'] or 0} tokens"
    if head["cost"] is not None:
        yield f"${head['cost']:.4g}"
    yield f"attempt {head['attempt'] or '?'} of {head['attempts']}"
    if policy["oldest"]:
        versions = dict.fromkeys((policy["oldest"], policy["newest"] or policy["oldest"]))
        yield f"policy {'→'.join(versions)}"


def _failures(raw: Mapping[Any, Any], head: Mapping[str, Any]) -> Iterator[RenderableType]:
    for attempt in present.attempts(raw):
        failure = attempt["failure"] or {}
        yield _failure(f"  attempt {attempt['attempt']}", failure)
    if head["failure"]:
        yield _failure("  failed", head["failure"])


def _failure(what: str, failure: Mapping[str, Any]) -> Text:
    where = f"{failure.get('kind', '')} in {failure.get('stage', '')}, {failure.get('type', '')}: "
    line = Text(f"{what}: {where}", style="red")
    shown = failure.get("message")
    return line.append_text(styled(shown)) if shown else line


def mark(raw: Mapping[Any, Any]) -> tuple[str, str]:
    """The sign of an outcome, and its colour: ✓ passed, ✗ not, ! flagged, ○ not measured."""
    score = number(raw.get("score"))
    if score is None:
        return "○", "yellow"
    verdict = present.verifier(raw)
    if verdict["flags"] or verdict["suspect"] or verdict["dropped_count"]:
        return "!", "magenta"
    return ("✓", "green") if score >= 1 else ("✗", "red")


def transcript(
    raw: Mapping[Any, Any], first: int = 0, last: int | None = None, *, whole: bool = False
) -> Iterator[RenderableType]:
    """The messages, with what the agent loop decided between them.

    Args:
        raw: the record.
        first: number of the first message.
        last: number of the message behind the last one; None = all.
        whole: whether texts are shown beyond `CUT_BYTES`.
    """
    events: dict[int | None, list[dict[str, Any]]] = {}
    for event in present.events(raw):
        events.setdefault(event["at"], []).append(event)
    for message in present.each_message(raw, first, None if whole else CUT_BYTES):
        if last is not None and message["n"] >= last:
            return
        yield from map(_event, events.get(message["n"], []))
        yield from _message(message)
    yield from map(_event, events.get(None, []))


def _event(event: Mapping[str, Any]) -> Text:
    details = as_json(event["details"], indent=None)
    return Text(f"┄┄ {event['event']} {details}", style="yellow")


def _message(message: ShownMessage) -> Iterator[RenderableType]:
    title = [f"{message['n']} {message['role']}", message["name"] or ""]
    if message["exit"] is not None:
        title.append(f"exit {message['exit']}")
    turn = message["turn"]
    if turn:
        title.append(f"turn {turn['n'] + 1}")
        title += [f"{turn['seconds']:.1f} s"] if turn["seconds"] else []
        title += [f"{turn['completion_tokens']} tokens"] if turn["completion_tokens"] else []
    style = "red" if message["kind"] == "error" else _ROLES.get(message["role"], "white")
    yield Rule(
        Text("  ".join(filter(None, title)), style=f"bold {style}"), align="left", style=style
    )
    if message["reasoning"]:
        yield styled(message["reasoning"], "dim italic")
    if message["content"]["text"]:
        yield styled(message["content"])
    yield from map(_call, message["calls"])
    if message["more_calls"]:
        yield Text(f"… {message['more_calls']} more calls", style="dim")
    if message["odd"]:
        yield styled(message["odd"], "yellow")


def _call(call: ShownCall) -> Text:
    shown = call["command"] if _says_all(call) else None
    line = Text.assemble(("→ ", "bold"), (call["name"], "bold"), " ")
    return line.append_text(styled(shown or call["arguments"]))


def _says_all(call: ShownCall) -> bool:
    """Whether the telling argument is nearly all of the arguments."""
    command = call["command"]
    return command is not None and call["arguments"]["bytes"] < 1.5 * command["bytes"] + 60


def verdict(raw: Mapping[Any, Any]) -> Iterator[RenderableType]:
    """What the verifier says."""
    shown = present.verifier(raw)
    if not present.report(raw):
        return
    yield Rule(Text("verifier", style="bold"), align="left", style="dim")
    yield Text(f"reason: {shown['reason'] or '-'}")
    for name, counts in shown["counts"].items():
        known = [
            f"{count} {what.replace('_', ' ')}"
            for what, count in counts.items()
            if count is not None
        ]
        yield Text(f"{name}: {', '.join(known)}")
    for test, outcome in shown["outcomes"].items():
        yield Text(f"  ✗ {test}  {outcome}", style="red")
    for what in ("flags", "suspect", "dropped"):
        if shown[what]:
            yield Text(f"{what}: {', '.join(shown[what])}", style="magenta")
    for what in ("first_failure", "output"):
        if shown[what]:
            yield Text.assemble((f"{what}:\n", "dim"), styled(shown[what]))
    if shown["rest"]:
        yield Text(as_json(shown["rest"]), style="dim")


def patch(raw: Mapping[Any, Any]) -> Iterator[RenderableType]:
    """The patch, file by file."""
    shown = present.patch(raw)
    if shown["files"] or shown["text"]:
        title = f"patch, {shown['bytes']} bytes" + (", shown in part" if shown["cut"] else "")
        yield Rule(Text(title, style="bold"), align="left", style="dim")
    for file in shown["files"]:
        moved = f"{file['old_path']} → " if file["old_path"] else ""
        test = ", a test" if file["test"] else ""
        line = f"{moved}{file['path']}  {file['kind']}{test}  +{file['added']} -{file['removed']}"
        yield Text(line, style="bold")
        for hunk in file["hunks"]:
            yield Text(hunk["header"], style="cyan")
            for sign, line_shown in hunk["lines"]:
                style = _SIGNS.get(sign, "")
                yield Text.assemble((sign, style), styled(line_shown, style))
    if shown["text"]:
        yield styled(shown["text"])


def notes(lines: Sequence[str]) -> Iterator[RenderableType]:
    """What is known beside a record: of the ledger, of dead letters."""
    for line in lines:
        yield Text(visible(line), style="yellow")
