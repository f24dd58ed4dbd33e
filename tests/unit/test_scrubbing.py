"""What counts as a secret, and what does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

import pytest
from growth import LINEAR, growth
from pydantic.fields import FieldInfo
from records import make_job, make_record

from hermes_queue.bodies import codec
from hermes_queue.errors import ModelError
from hermes_queue.ledger.fleet.lanes import EndedAttempts, Watched
from hermes_queue.models import AgentSpec, Message, ScoredTrajectory, Turn, Wire
from hermes_queue.telemetry.scrubbing import Scrubber
from workers.record import describe
from workers.upkeep.counts import Outcomes

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghij0123456789",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "github_pat_11ABCDEFG0abcdefghijkl_mnop",
        "glpat-abcdefghij0123456789",
        "xoxb-123456789012-abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "as-AbCdEfGhIjKlMnOpQrStUv",
        JWT,
        "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_keys_of_known_forms_are_replaced_wherever_they_stand(secret):
    assert Scrubber().text(f"before {secret} after") == "before *** after"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("redis://u:p@ss@h:1/0", "redis://u:***@ss@h:1/0"),
        ("redis://:secret@h:1/0", "redis://:***@h:1/0"),
        ("https://bot:x@h/p and https://h/p", "https://bot:***@h/p and https://h/p"),
        ("Authorization: Bearer abc12345defg", "Authorization: Bearer ***"),
        ("{'authorization': 'Basic dXNlcjpwYXNz'}", "{'authorization': 'Basic ***'}"),
        ("bearer 0123456789abcdef", "bearer ***"),
    ],
)
def test_passwords_in_urls_and_headers_are_replaced_and_the_rest_stays(text, clean):
    assert Scrubber().text(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org:8080/a@b",
        "the task-name and as-is behaviour of sk-learn",
        "password = get_password()",
        "a bearer of characteristically good news",
        "12:30 http://localhost:8000/v1 user@example.org",
    ],
)
def test_ordinary_text_stays_as_it_is(text):
    assert Scrubber().text(text) == text


def test_values_of_variables_with_secret_names_are_replaced():
    scrubber = Scrubber.of(
        {
            "SERVICE_API_KEY": "plain words here",
            "DB_PASSWORD": "hunter2hunter2",
            "SHORT_TOKEN": "none",
            "KEYBOARD": "qwertyqwerty",
            "BROKER_URL": "amqp://u:p%40ssw0rdy@h",
            "MY_OWN": "listed-by-name",
            "SSL_KEY": "/etc/passwd",
        },
        ["my_own"],
    )
    text = "plain words here|hunter2hunter2|none|qwertyqwerty|p@ssw0rdy|listed-by-name|/etc/passwd"
    assert scrubber.text(text) == "***|***|none|qwertyqwerty|***|***|/etc/passwd"


def test_a_secret_that_contains_another_is_replaced_as_a_whole():
    assert Scrubber(["abcdefgh", "abcdefgh-longer"]).text("abcdefgh-longer abcdefgh") == "*** ***"


def test_each_line_of_a_secret_with_several_lines_is_one():
    secret = "first-line-0123456\nsecond-line-012345\nx"
    assert Scrubber([secret]).text("see second-line-012345, x") == "see ***, x"


def test_a_record_tells_where_something_was_replaced_and_keeps_its_tokens():
    record = make_record(make_job()).model_copy(
        update={
            "messages": (Message(role="tool", content="the-secret!", tool_call_id="c"),),
            "report": {"log": ["x the-secret! y"]},
            "turns": (Turn(prompt_ids=(1, 2), completion_ids=(3,), sampling={"k": "the-secret!"}),),
        }
    )
    clean = Scrubber(["the-secret!"]).record(record)
    assert clean.messages[0].content == "***"
    assert clean.report == {"log": ["x *** y"]}
    assert clean.turns[0].sampling == {"k": "***"}
    assert (clean.turns[0].prompt_ids, clean.sequences) == ((1, 2), record.sequences)
    assert clean.events[-1] == {
        "turn": 1,
        "event": "secrets_scrubbed",
        "fields": ["messages", "report", "turns"],
    }


def test_no_text_of_a_record_keeps_a_secret_whatever_field_or_key_it_stands_in():
    secret = "the-secret!"

    def patterned(field: FieldInfo) -> bool:
        return any(hasattr(each, "pattern") for each in field.metadata)

    def filled(annotation: Any) -> Any:
        """A value of the field's type, of nothing but the secret where that is possible."""
        kind, arguments = get_origin(annotation), get_args(annotation)
        if kind is Literal:
            return arguments[0]
        if kind in (tuple, Sequence):
            return tuple(filled(each) for each in arguments if each is not Ellipsis)
        if kind is dict:
            return {secret: secret if arguments[1] is Any else filled(arguments[1])}
        if kind is not None:  # Optional
            return filled(arguments[0])
        if issubclass(annotation, Wire):
            return annotation.model_construct(
                **{
                    name: "run"
                    if name in identity or patterned(field)
                    else filled(field.annotation)
                    for name, field in annotation.model_fields.items()
                }
                | ({"sampling": {secret: [{secret: secret}]}} if annotation is AgentSpec else {})
            )
        return {str: secret, bool: True, int: 1, float: 0.5}[annotation]

    identity = {"run_id", "group_id", "trajectory_id", "env", "instance_id", "requeued_from"}
    record = filled(ScoredTrajectory)
    assert str(record).count(secret) > 50
    clean = Scrubber([secret]).record(record)
    assert secret not in str(clean)
    ids = ("prompt_ids", "completion_ids", "logprobs", "policy_spans")
    turn = clean.turns[0].model_dump(include=set(ids))
    assert turn == dict(zip(ids, ((1,), (1,), (0.5,), (("***", 1),)), strict=True))
    assert clean.sequences == record.sequences


def test_a_secret_that_is_an_id_or_a_word_of_a_vocabulary_does_not_cost_the_record():
    job = make_job(run_id="assistant", agent={"kind": "no-tool-call"})
    record = make_record(job)
    words = ["assistant", "completed", "no_tool_call", "no-tool-call", job.trajectory_id, job.env]
    clean = Scrubber(words).record(record)
    assert codec.decode_record(codec.encode_record(clean)) == clean
    assert (clean.trajectory_id, clean.stop_reason) == (job.trajectory_id, "no_tool_call")


def test_keys_that_become_the_same_are_numbered():
    found = Scrubber().tree({f"hf_{'a' * 20}": 1, "***": 2, f"hf_{'b' * 20}": 3, "x": 4})
    assert found == {"*** (2)": 1, "***": 2, "*** (3)": 3, "x": 4}


def test_what_is_nested_too_deep_is_replaced():
    deep: Any = "the-secret!"
    for _ in range(3000):
        deep = [deep]
    clean = str(Scrubber(["the-secret!"]).tree({"found": deep}))
    assert "nested too deep" in clean
    assert "the-secret!" not in clean


def test_a_record_without_secrets_is_left_alone():
    record = make_record(make_job())
    assert Scrubber(["the-secret!"]).record(record) is record


def test_failures_are_clean_before_they_go_to_the_ledger_or_a_breaker():
    failure = ModelError("401 for sk-proj-abcdefghij0123456789")
    outcomes = Outcomes()
    outcomes.note("train", make_job(), failure)
    assert describe(failure).message == "401 for ***"
    assert outcomes.take() == {Watched("train"): {"model": EndedAttempts(1, "401 for ***", "run")}}


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        ("://", "a."),
        ("", "a://b:"),
        ("", "://"),
        ("", "-eyJabc"),
        ("", "eyJabcdefghijkl."),
        ("eyJ", "a"),
        ("", "eyJabcdefghijklmno.aaaaaaaaaaaa"),
        ("", "-----BEGIN PRIVATE KEY"),
        ("-----BEGIN PRIVATE KEY-----", "-----END "),
        ("", "bearer "),
        ("", "authorization: "),
        ("ak-", "a_"),
    ],
)
def test_the_time_a_text_takes_grows_no_faster_than_the_text(start: str, piece: str) -> None:
    text_of = Scrubber(["a-secret-of-ours"]).text
    assert growth(lambda n: start + piece * n, text_of, 1_500) < LINEAR


def test_a_token_is_found_in_a_longer_run_of_words_and_dots() -> None:
    assert Scrubber().text(f"a.b-{JWT}.c..d") == "a.b-***.c..d"
