"""What a worker logged last."""

from __future__ import annotations

import logging

from workers.upkeep.log_tail import LogTail


def logged(tail: LogTail, *messages: str) -> None:
    for message in messages:
        tail.handle(logging.makeLogRecord({"msg": message, "levelno": logging.INFO}))


def test_only_the_end_is_kept():
    tail = LogTail()
    logged(tail, *(f"line {n} " + "x" * 100 for n in range(200)))
    assert "line 199" in tail.text()
    assert "line 100 " not in tail.text()
    assert len(tail.text()) <= 4000


def test_a_traceback_is_part_of_it():
    tail = LogTail()
    try:
        raise ValueError("why")
    except ValueError as error:
        exc = (type(error), error, error.__traceback__)
        tail.handle(logging.makeLogRecord({"msg": "it failed", "exc_info": exc}))
    assert "Traceback" in tail.text()
    assert "ValueError: why" in tail.text()


def test_what_is_known_already_is_no_news():
    tail = LogTail()
    assert tail.news() == ""
    logged(tail, "one")
    tail.reported(tail.news())
    assert tail.news() == ""
    logged(tail, "two")
    assert "one" in tail.news()
    assert "two" in tail.news()


def test_text_that_utf_8_cannot_encode_is_escaped():
    tail = LogTail()
    logged(tail, "half a pair: \ud800")
    assert tail.news().endswith("half a pair: \\ud800")
