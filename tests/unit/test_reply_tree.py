"""The tree of a program's replies: what a call continues, and what is recorded of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reply_trees import BASH, SYSTEM, TASK, USER, Program, result, say

from hermes_queue.agent.capture.tree import Unplaceable
from hermes_queue.agent.capture.tree import tree as the_tree
from hermes_queue.models import FunctionCall, Message, ToolCall


@pytest.fixture
def program() -> Program:
    return Program()


def test_a_call_continues_the_reply_that_it_repeats(program):
    first = say("Let me look.", "ls")
    program.ask(first, SYSTEM, USER)
    placed = program.place(SYSTEM, USER, first, result("app.py"))
    assert placed.anchor.messages == (SYSTEM, USER, first)
    assert (placed.parent, placed.branch, placed.events) == (0, "main", ())
    assert placed.new_messages == (result("app.py"),)


@pytest.mark.parametrize(
    "returned",
    [
        say("", "ls"),
        say(None, "ls", ids="other"),
        say(" \n", "ls"),
        Message(
            role="assistant",
            tool_calls=(
                ToolCall(id="c0", function=FunctionCall(name="bash", arguments='{"command":"ls"}')),
            ),
        ),
    ],
    ids=["empty-content", "other-ids", "blanks", "other-json"],
)
def test_what_a_program_writes_in_another_way_is_still_the_sampled_reply(program, returned):
    first = say(None, "ls")
    program.ask(first, SYSTEM, USER)
    answer = result("app.py", returned.tool_calls[0].id)
    placed = program.place(SYSTEM, USER, returned, answer)
    assert placed.anchor is not None
    assert placed.messages == (SYSTEM, USER, first, result("app.py"))
    assert placed.messages[2] is first


@pytest.mark.parametrize(
    ("sampled", "returned"),
    [
        ('{"a": 1.0, "b": [1e3]}', '{"b":[1000],"a":1}'),
        ('{"n": 12345678901234567890}', '{"n":12345678901234567000}'),
        ('{"t": "\\u00e9"}', '{"t":"é"}'),
        ("", "{}"),
        ("not json", "not json"),
        ('{"a": ' * 3000, '{"a": ' * 3000),
    ],
)
def test_arguments_are_compared_by_value(program, sampled, returned):
    def reply(arguments):
        call = ToolCall(id="c0", function=FunctionCall(name="bash", arguments=arguments))
        return Message(role="assistant", tool_calls=(call,))

    program.ask(reply(sampled), USER)
    assert program.place(USER, reply(returned), result("x")).anchor is not None


@pytest.mark.parametrize(
    ("returned", "place"),
    [
        (say("I looked.", "ls"), "messages[2].content"),
        (say("Let me look.", "ls -l"), "messages[2].tool_calls[0].function.arguments.command"),
        (say("Let me look."), "messages[2].tool_calls"),
    ],
)
def test_a_reply_that_the_program_edited_begins_a_branch_and_says_where(program, returned, place):
    program.ask(say("Let me look.", "ls"), SYSTEM, USER)
    turn = program.ask(say("Done."), SYSTEM, USER, returned, result("app.py"))
    [event] = program.events("rerendered")
    assert event == {
        "turn": turn,
        "event": "rerendered",
        "reason": "the history was rewritten",
        "at": place,
    }
    assert program.result.turns[turn].parent is None
    assert [branch.root for branch in program.result.branches] == [0, 1]
    assert program.labels == ["main", "main"]


def test_a_reply_that_the_program_wrote_itself_is_not_continued(program):
    first, own = say(None, "ls"), Message(role="assistant", content="I wrote this.")
    program.ask(first, USER)
    placed = program.place(USER, first, result("x"), own, USER)
    assert placed.anchor is None
    assert placed.parent == 0
    assert [e["reason"] for e in placed.events] == ["the program wrote a reply itself"]


def test_changed_tools_begin_a_branch(program):
    first = say(None, "ls")
    program.ask(first, USER)
    other = {"type": "function", "function": {"name": "grep", "parameters": {}}}
    placed = program.place(USER, first, result("x"), tools=(BASH, other))
    assert placed.anchor is None
    assert [(e["reason"], e["at"]) for e in placed.events] == [
        ("the tools were changed", "tools[1]")
    ]


def test_reasoning_that_the_program_left_out_is_kept_and_counted_once_each(program):
    first = say(None, "ls", reasoning="The file first.")
    second = say(None, "cat app.py", reasoning="Now read it.", ids="d")
    without = [m.model_copy(update={"reasoning": None}) for m in (first, second)]
    program.ask(first, USER)
    program.ask(second, USER, without[0], result("app.py"))
    last = (USER, without[0], result("app.py"), without[1], result("print()", "d0"))
    program.ask(say("Done."), *last)
    placed = program.place(*last, say("Done."), USER)
    assert placed.messages[1] is first
    assert placed.messages[3] is second
    assert program.events("reasoning_kept") == [
        {"turn": 1, "event": "reasoning_kept", "replies": 2}
    ]


def test_the_model_sees_what_the_program_sent_if_that_is_asked_for():
    program = Program(history="agent")
    first = say(None, "ls", reasoning="The file first.")
    program.ask(first, USER)
    sent = (USER, first.model_copy(update={"reasoning": None}), result("app.py"))
    placed = program.place(*sent)
    assert placed.messages == sent
    assert placed.anchor is None
    assert placed.parent == 0
    program.ask(say(None, "cat app.py", ids="d"), *sent)
    placed = program.place(*sent, say(None, "cat app.py", ids="d"), result("print()", "d0"))
    assert placed.anchor is not None, "its prompt was what the program sends now"
    assert len(program.events("reasoning_left_out")) == 1


@pytest.mark.parametrize("history", ["sampled", "agent"])
def test_results_answer_the_calls_that_were_sampled_whatever_ids_the_program_gives_them(history):
    program = Program(history=history)
    first = say(None, "ls", "pwd")
    program.ask(first, USER)
    own = say(None, "ls", "pwd", ids="own")
    program.ask(say("Done."), USER, own, result("a", "own0"), result("/", "own1"))
    path = program.tree.main_path()
    assert path == [USER, first, result("a", "c0"), result("/", "c1"), say("Done.")]
    placed = program.place(USER, own, result("a", "own0"), result("/", "own1"), say("Done."), USER)
    assert placed.anchor is not None, "results of other calls in another order would differ"
    assert program.place(USER, own, result("/", "own1"), result("a", "own0")).parent == 0
    assert len(program.place(USER, own, result("a", "own1")).new_messages) == 1


def test_of_two_equal_replies_the_one_that_the_program_got_is_continued(program):
    program.ask(say(None, "ls"), USER)
    program.ask(say(None, "ls"), USER, deliver=False)
    program.ask(say("Done."), USER, say(None, "ls"), result("a"))
    assert [turn.parent for turn in program.result.turns] == [None, None, 0]
    assert program.result.turns[1].call.status == "undelivered"


def test_equal_calls_get_siblings_of_which_either_can_be_continued(program):
    one, other = say(None, "ls"), say(None, "pwd")
    program.ask(one, USER)
    program.ask(other, USER)
    assert program.place(USER, one, result("x")).parent == 0
    assert program.place(USER, other, result("x")).parent == 1
    assert [(b.root, b.leaf) for b in program.result.branches] == [(0, 0), (1, 1)]


def test_siblings_that_say_the_same_are_followed_to_where_they_differ(program):
    program.ask(say(None, "ls"), USER)
    program.ask(say(None, "cat a", ids="d"), USER, say(None, "ls"), result("a"))
    program.ask(say(None, "ls"), USER)
    placed = program.place(
        *(USER, say(None, "ls"), result("a"), say(None, "cat a", ids="d"), result("text", "d0"))
    )
    assert placed.parent == 1


def test_a_resent_reply_was_delivered(program):
    first = say(None, "ls")
    program.ask(first, USER, deliver=False)
    assert program.result.turns[0].call.status == "undelivered"
    program.ask(say("Done."), USER, first, result("a"), deliver=False)
    statuses = [turn.call.status for turn in program.result.turns]
    assert statuses == ["delivered", "undelivered"]
    assert program.tree.main_path() == [USER, first]


def test_calls_that_are_open_at_once_share_their_new_messages(program):
    first = say(None, "ls")
    program.ask(first, USER)
    calls = [program.call(USER, first, result("a")) for _ in range(2)]
    placed = [program.tree.place(call) for call in calls]
    for each, call, text in zip(placed, calls, ("one", "two"), strict=True):
        program.answer(each, call, say(text))
    assert [node.message.role for node in program.result.nodes].count("tool") == 1
    assert [turn.parent for turn in program.result.turns] == [None, 0, 0]


def test_a_reply_that_a_program_wrote_is_its_own_even_if_the_model_says_the_same_meanwhile(program):
    guess = Message(role="user", content="Go on.")
    calls = [program.call(USER), program.call(USER, say("OK"), guess)]
    placed = [program.tree.place(call) for call in calls]
    for each, call, text in zip(placed, calls, ("OK", "Done."), strict=True):
        program.answer(each, call, say(text))
    program.tree.deliver(1)
    nodes = program.result.nodes
    [last] = [node for node in nodes if node.turn == 1]
    written = nodes[nodes[last.parent].parent]
    assert (written.message, written.turn) == (say("OK"), None)
    assert [turn.call.status for turn in program.result.turns] == ["undelivered", "delivered"]


def test_a_verifier_is_not_shown_replies_that_the_program_wrote(program):
    written = say(r"\boxed{42}")
    program.ask(say(None, "ls"), USER, written, Message(role="user", content="Check it."))
    assert written in program.tree.main_path()
    assert written not in program.tree.main_path(sampled=True)
    assert program.tree.main_path(sampled=True)[-1] == say(None, "ls")


# --- labels -------------------------------------------------------------------------------


def test_the_main_conversation_is_the_one_about_the_task_whichever_ends_first(program):
    title = Message(role="user", content=f"Write a title for: {TASK}")
    program.ask(say("A bug fix"), SYSTEM, title, tools=())
    program.ask(say(None, "ls"), SYSTEM, USER)
    program.ask(say("summary"), Message(role="user", content="Summarise."), tools=())
    assert program.labels == ["side", "main", "side"]
    assert program.tree.main_tools() == (BASH,)
    assert program.tree.main_path() == [SYSTEM, USER, say(None, "ls")]


def test_a_conversation_whose_task_was_an_argument_is_a_sub_agents(program):
    goal = "Find all uses of the function parse() and list them."
    call = ToolCall(
        id="d0",
        function=FunctionCall(name="delegate", arguments=json.dumps({"tasks": [{"goal": goal}]})),
    )
    program.ask(Message(role="assistant", tool_calls=(call,)), SYSTEM, USER)
    helper = Message(role="system", content="You help another agent.")
    asked = Message(role="user", content=goal)
    program.ask(say(None, "grep parse"), helper, asked)
    program.ask(say("Done."), helper, asked, say(None, "grep parse"), result("x"))
    assert program.labels == ["main", "sub_agent", "sub_agent"]


@pytest.mark.parametrize(
    "hints",
    [
        {"X-Claude-Code-Agent-Id": "a1"},
        {"x-parent-session-id": "p"},
        {"x-codex-turn-metadata": '{"agent_name": "/root/helper"}'},
    ],
)
def test_headers_of_programs_tell_their_sub_agents(program, hints):
    program.ask(say(None, "ls"), SYSTEM, USER)
    program.ask(say("x"), SYSTEM, Message(role="user", content="Look."), hints=hints)
    assert program.labels == ["main", "sub_agent"]


@pytest.mark.parametrize("metadata", ["{", "[]", '{"agent_name": "/root"}', "{" * 5000])
def test_headers_that_say_nothing_are_passed_over(program, metadata):
    program.ask(say("x"), SYSTEM, USER, hints={"x-codex-turn-metadata": metadata})
    assert program.labels == ["main"]


def long_conversation(program: Program) -> tuple[Message, ...]:
    messages: tuple[Message, ...] = (SYSTEM, USER)
    for n in range(4):
        reply = say(f"step {n}", "ls", ids=f"c{n}-")
        program.ask(reply, *messages)
        messages = (*messages, reply, result(str(n), f"c{n}-0"))
    return messages


def test_without_any_other_the_conversation_of_a_sub_agent_is_the_main_one(program):
    hints = {"x-parent-session-id": "p"}
    program.ask(say("A title"), Message(role="user", content="A title."), tools=(), hints=hints)
    program.ask(say("Done."), USER, hints=hints)
    assert program.labels == ["sub_agent", "main"]
    program.ask(say("Mine."), USER)
    assert program.labels == ["sub_agent", "sub_agent", "main"]


def test_a_program_that_begins_the_task_anew_still_works_on_it(program):
    program.ask(say("No idea."), USER)
    again = Message(role="user", content=f"The tests still fail. {TASK}")
    program.ask(say("Done."), again)
    assert program.labels == ["main", "main"]
    assert program.tree.main_path() == [again, say("Done.")]


def test_an_agent_that_was_handed_the_whole_task_is_no_main_conversation(program):
    program.ask(say(None, TASK), USER)
    program.ask(say(None, "ls"), Message(role="user", content=TASK))
    program.ask(say("Done."), Message(role="user", content=TASK), say(None, "ls"), result("a"))
    assert program.labels == ["main", "sub_agent", "sub_agent"]


@pytest.mark.parametrize("kept_task", [True, False])
def test_a_conversation_without_its_middle_is_a_compaction_and_goes_on(program, kept_task):
    messages = long_conversation(program)
    summary = Message(role="user", content="So far: listed the files four times.")
    opening = (SYSTEM, USER, summary) if kept_task else (SYSTEM, summary)
    program.ask(say("Goes on.", "cat"), *opening, *messages[-2:])
    program.ask(say("Finished."), *opening, *messages[-2:], say("Goes on.", "cat"), result("z"))
    assert program.labels == ["main"] * 4 + ["compaction"] * 2
    assert program.tree.main_path()[-1] == say("Finished.")
    assert len(program.result.branches) == 2


# --- bounds -------------------------------------------------------------------------------


def test_more_messages_than_the_bound_are_refused(program, monkeypatch):
    monkeypatch.setattr(the_tree, "MAX_NODES", 3)
    program.ask(say("x"), USER)
    with pytest.raises(Unplaceable, match="more than 3 messages"):
        program.place(SYSTEM, USER)


def test_more_text_than_the_bound_is_refused_and_nothing_is_kept_of_it(program, monkeypatch):
    monkeypatch.setattr(the_tree, "MAX_TEXT_CHARS", 1000)
    with pytest.raises(Unplaceable):
        program.place(Message(role="user", content="x" * 1001))
    program.ask(say("x"), USER)
    assert len(program.result.nodes) == 2


def test_more_tokens_than_the_bound_are_refused(program, monkeypatch):
    monkeypatch.setattr(the_tree, "MAX_TOKEN_IDS", 3)
    program.ask(say("x"), USER)
    with pytest.raises(Unplaceable, match="4 tokens"):
        program.place(SYSTEM, USER)


@pytest.mark.parametrize("depth", [100, 300, 450, 600, 900, 950, 990, 2000, 100_000])
def test_arguments_of_any_depth_are_placed_and_compared(program, depth):
    def nested(end):
        arguments = '{"a":' * depth + end + "}" * depth
        call = ToolCall(id="c0", function=FunctionCall(name="bash", arguments=arguments))
        return Message(role="assistant", tool_calls=(call,))

    program.ask(nested("1"), USER)
    assert program.place(USER, nested("1"), result("x")).anchor is not None
    assert program.place(USER, nested("2"), result("x")).anchor is None
    tool = {"function": {"name": "x", "parameters": json.loads('{"a":' * 90 + "1" + "}" * 90)}}
    program.ask(nested("3"), USER, tools=(tool,))


def test_tools_that_are_nested_too_deep_are_refused(program):
    tool: Any = {}
    for _ in range(5000):
        tool = {"a": tool}
    with pytest.raises(Unplaceable):
        program.place(USER, tools=(tool,))
