"""What counts as a secret, and what does not."""

from __future__ import annotations

import pytest
from growth import LINEAR, growth
from records import make_job, make_record

from hermes_queue.errors import ModelError
from hermes_queue.models import Message, Turn
from hermes_queue.telemetry.scrubbing import Scrubber
from workers.draft import describe
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


def test_a_record_without_secrets_is_left_alone():
    record = make_record(make_job())
    assert Scrubber(["the-secret!"]).record(record) is record


def test_failures_are_clean_before_they_go_to_the_ledger_or_a_breaker():
    failure = ModelError("401 for sk-proj-abcdefghij0123456789")
    outcomes = Outcomes()
    outcomes.note("train", failure)
    assert describe(failure).message == "401 for ***"
    assert outcomes.take() == {"train": {"model": (1, "401 for ***")}}


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
