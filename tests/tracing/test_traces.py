"""A real worker exports what it does as traces that a collector understands."""

from __future__ import annotations

import json
from collections.abc import Iterable

from otlp_receiver import ReceivedSpan, Receiver
from records import make_job
from scripted_model import Say, scripted_model, steps
from sink_process import run_sink
from worker_process import wait_until

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.models import AgentSpec, Provenance

ROW = {"question": "How many eggs are two dozen?", "answer": "2*12=<<2*12=24>>24\n#### 24"}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "sk-" + "s" * 40


def job(name="i0", **more):
    return make_job("run", name, item=ROW, **more)


def from_(parent: str | None) -> Provenance:
    return Provenance(producer="test", traceparent=parent)


def done(ledger):
    wait_until("run done", lambda: ledger.run_status("run").done)


def trace(collector: Receiver, count: int = 1) -> list[ReceivedSpan]:
    """All spans, once the root spans of `count` trajectories are among them."""

    def complete() -> bool:
        roots = [span for span in collector.spans() if span.name.startswith("trajectory ")]
        return len(roots) >= count

    collector.until(complete)
    return collector.spans()


def named(spans: Iterable[ReceivedSpan], name: str) -> ReceivedSpan:
    [found] = [span for span in spans if span.name == name]
    return found


def chat_job(model, **more):
    agent = AgentSpec(kind="openai", model="policy", base_url=model.url)
    return job(agent=agent, **more)


def test_a_trajectory_is_one_trace_of_stages_model_calls_and_tool_calls(
    ledger, start_worker, collector
):
    replies = steps(Say(call="calculator", arguments={"expression": "2*12"}), Say("#### 24"))
    start_worker()
    with scripted_model(replies) as model:
        enqueue([chat_job(model)], ledger=ledger)
        spans = trace(collector)
    assert len({span.trace_id for span in spans}) == 1
    root, attempt = named(spans, "trajectory gsm8k"), named(spans, "attempt")
    agent = named(spans, "invoke_agent openai")
    assert root.parent_id == ""
    assert root.attributes["hermes_queue.score"] == 1.0
    assert {span.name for span in spans if span.parent_id == root.span_id} == {
        "attempt",
        "publish",
        "queue",
    }
    stages = {span.name for span in spans if span.parent_id == attempt.span_id}
    assert stages >= {"load", "prepare", "acquire", "setup", "invoke_agent openai", "verify"}
    calls = [span for span in spans if span.parent_id == agent.span_id]
    assert [span.name for span in sorted(calls, key=lambda each: each.begins_ns)] == [
        "chat policy",
        "execute_tool calculator",
        "chat policy",
    ]
    [chat, *_] = [span for span in calls if span.name == "chat policy"]
    assert chat.kind == "client"
    assert chat.attributes["gen_ai.operation.name"] == "chat"
    assert chat.attributes["gen_ai.provider.name"] == "openai"
    assert chat.attributes["gen_ai.request.model"] == "policy"
    assert chat.attributes["gen_ai.usage.input_tokens"] == 100
    assert chat.attributes["gen_ai.usage.output_tokens"] == 10
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert chat.attributes["server.address"] == "127.0.0.1"
    tool = named(spans, "execute_tool calculator")
    assert tool.attributes["gen_ai.operation.name"] == "execute_tool"
    assert tool.attributes["gen_ai.tool.name"] == "calculator"
    assert tool.attributes["hermes_queue.tool.ok"] is True
    [(event, score)] = named(spans, "verify").events
    assert (event, score["gen_ai.evaluation.score.value"]) == ("gen_ai.evaluation.result", 1.0)
    assert all(root.begins_ns <= span.begins_ns <= span.ends_ns for span in calls)
    assert not any(
        "messages" in name or "arguments" in name for s in spans for name in s.attributes
    )


def test_contents_are_exported_on_request_without_secrets(ledger, start_worker, collector):
    text = "x" * 89 + " " + SECRET + " " + "y" * 200
    call = Say(call="calculator", arguments={"expression": f"1 # {SECRET}"})
    start_worker(HERMES_QUEUE_OTEL_CONTENT="true", HERMES_QUEUE_OTEL_CONTENT_CHARACTERS="100")
    with scripted_model(steps(call, Say(text))) as model:
        enqueue([chat_job(model)], ledger=ledger)
        spans = trace(collector)
    first, second = (span for span in spans if span.name == "chat policy")
    [system, user] = json.loads(first.attributes["gen_ai.input.messages"])
    assert [system["role"], user["role"]] == ["system", "user"]
    [reply] = json.loads(second.attributes["gen_ai.output.messages"])
    assert reply["parts"][0]["content"].startswith("x" * 89 + " *** yyyyyy [...")
    shown = [each["role"] for each in json.loads(second.attributes["gen_ai.input.messages"])]
    assert shown == ["assistant", "tool"]
    assert "***" in named(spans, "execute_tool calculator").attributes["gen_ai.tool.call.arguments"]
    assert "sk-" not in str(collector.requests)


def test_each_attempt_of_a_retried_trajectory_is_in_its_trace(ledger, start_worker, collector):
    for _ in range(2):
        start_worker(concurrency=1)
    agent = {"kind": "flaky_agent:flaky", "params": {"failures": 2, "message": "prompt: abc"}}
    enqueue([job(agent=agent)], ledger=ledger)
    spans = trace(collector)
    assert len({span.trace_id for span in spans}) == 1
    attempts = sorted(
        (span for span in spans if span.name == "attempt"), key=lambda each: each.begins_ns
    )
    outcomes = [(span.failed, span.attributes["hermes_queue.outcome"]) for span in attempts]
    assert outcomes == [(True, "model"), (True, "model"), (False, "measured")]
    assert attempts[0].attributes["error.type"] == "model"
    assert len({span.span_id for span in spans}) == len(spans)
    assert "prompt: abc" not in str(collector.requests)


def test_a_trajectory_goes_on_in_the_trace_of_its_producer(ledger, start_worker, collector):
    start_worker(HERMES_QUEUE_OTEL_SAMPLE="0")
    unwanted = PARENT.replace("0af7", "1af7")[:-1] + "0"
    jobs = [job("i0", producer=from_(PARENT)), job("i1", producer=from_(unwanted)), job("i2")]
    enqueue(jobs, ledger=ledger)
    done(ledger)
    spans = trace(collector)
    assert {span.trace_id for span in spans} == {PARENT.split("-")[1]}
    assert named(spans, "trajectory gsm8k").parent_id == PARENT.split("-")[2]


def test_an_attempt_that_is_handed_back_goes_on_in_its_trace_elsewhere(
    ledger, start_worker, collector
):
    first = start_worker(HERMES_QUEUE_WORKER_SOFT_SHUTDOWN_S="0")
    slow = AgentSpec(kind="slow", params={"seconds": 2})
    enqueue([job(agent=slow)], ledger=ledger)
    wait_until("it runs", lambda: ledger.run_status("run").running)
    first.terminate()
    second = start_worker()
    spans = trace(collector)
    assert len({span.trace_id for span in spans}) == 1
    outcomes = {
        span.attributes["hermes_queue.outcome"]: span.resource["process.pid"]
        for span in spans
        if span.name == "attempt"
    }
    assert outcomes["measured"] == second.process.pid
    assert outcomes["handed back"] == first.process.pid


def test_failed_attempts_are_kept_on_request_though_their_trace_is_not_sampled(
    ledger, start_worker, collector
):
    start_worker(HERMES_QUEUE_OTEL_SAMPLE="0", HERMES_QUEUE_OTEL_KEEP_FAILED="true")
    agent = {"kind": "flaky_agent:flaky", "params": {"failures": 1}}
    enqueue([job("good"), job("bad", agent=agent)], ledger=ledger)
    spans = trace(collector)
    assert {s.attributes.get("hermes_queue.instance_id", "bad") for s in spans} == {"bad"}
    assert named(spans, "attempt").failed


def test_what_a_sink_writes_is_linked_to_its_trajectories(
    ledger, start_worker, collector, tmp_path
):
    start_worker()
    enqueue([job("i0"), job("i1", producer=from_(PARENT))], ledger=ledger)
    done(ledger)
    roots = [s for s in trace(collector, 2) if s.name == "trajectory gsm8k"]
    flags = ("sink", "jsonl", "--out", tmp_path / "out.jsonl", "--run", "run", "--until-done")
    settings = {"HERMES_QUEUE_OTEL_ENDPOINT": collector.url, "HERMES_QUEUE_OTEL_SAMPLE": "1"}
    ended = run_sink(ledger, *flags, **settings)
    assert ended.returncode == 0, ended.stderr
    writes = [span for span in collector.spans() if span.name == "write jsonl"]
    links = {link for span in writes for link in span.links}
    assert links == {(root.trace_id, root.span_id) for root in roots}
    assert sum(span.attributes["hermes_queue.added"] for span in writes) == 2


def test_a_producer_exports_its_call_with_links_to_what_it_began(ledger, collector, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_OTEL_ENDPOINT", collector.url)
    monkeypatch.setenv("HERMES_QUEUE_OTEL_SAMPLE", "1")
    monkeypatch.setenv("HERMES_QUEUE_OTEL_INTERVAL_S", "0.05")
    enqueue([job("i0"), job("i1")], ledger=ledger)
    collector.until(collector.spans)
    span = named(collector.spans(), "enqueue")
    assert (span.kind, len(span.links)) == ("producer", 2)
    assert span.attributes["hermes_queue.enqueued"] == 2


def test_metrics_and_log_lines_are_exported_with_the_trace_they_belong_to(
    ledger, start_worker, collector
):
    worker = start_worker(HERMES_QUEUE_OTEL_SIGNALS="traces,metrics,logs")
    agent = {"kind": "flaky_agent:flaky", "params": {"failures": 1, "message": f"no {SECRET}"}}
    enqueue([job(agent=agent)], ledger=ledger)
    done(ledger)
    worker.terminate()
    [retried] = [line for line in collector.lines() if "retried in" in line.body.string_value]
    failed = next(span for span in collector.spans() if span.name == "attempt" and span.failed)
    assert retried.trace_id.hex() == failed.trace_id
    assert "no ***" in retried.body.string_value
    assert "sk-" not in str(collector.requests)
    found = collector.metrics()
    assert sum(p.as_double for p in found["hermes_queue_attempts_total"].sum.data_points) == 2
    [score] = found["hermes_queue_score"].histogram.data_points
    assert (score.count, sum(score.bucket_counts)) == (1, 1)
    slots = found["hermes_queue_worker_slots"].gauge.data_points
    assert sum(point.as_double for point in slots) == 4
