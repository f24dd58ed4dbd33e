"""The calls of a judge are traced as those of an agent are."""

from __future__ import annotations

from collections.abc import Callable

from otlp_receiver import ReceivedSpan, otlp_receiver
from records import make_job
from scripted_model import Say, scripted_model, steps
from worker_process import WorkerProcess

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger
from hermes_queue.models import JudgeSpec

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}


def test_the_calls_of_a_judge_are_in_the_attempt_under_its_own_model(
    ledger: Ledger, start_worker: Callable[..., WorkerProcess]
) -> None:
    with otlp_receiver() as collector, scripted_model(steps(Say("no verdict"))) as model:
        start_worker(
            HERMES_QUEUE_OTEL_ENDPOINT=collector.url,
            HERMES_QUEUE_OTEL_SAMPLE="1",
            HERMES_QUEUE_OTEL_INTERVAL_S="0.1",
        )
        judge = JudgeSpec(model="strict", prompt="Is it polite?", base_url=model.url)
        enqueue([make_job("run", item=ROW, judge=judge)], ledger=ledger)

        def spans_named(name: str) -> list[ReceivedSpan]:
            return [span for span in collector.spans() if span.name == name]

        collector.until(lambda: bool(spans_named("trajectory gsm8k")))
        asked, [attempt] = spans_named("chat strict"), spans_named("attempt")
    assert {span.parent_id for span in asked} == {attempt.span_id}
    assert asked[0].attributes["gen_ai.usage.output_tokens"] == 10
