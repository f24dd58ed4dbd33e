"""A server of Tinker's protocol on 127.0.0.1, with a model small enough to be computed in numpy.

The model gives the next token from the one before it: a table of logits. Its losses, gradients and
Adam steps are computed from what the SDK sends, so a wrong cut, shift or mask changes them. States
survive a killed client, as on the real service; the weights of a state list what was trained.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from served_http import QuietHandler, served_http
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.response_conv import _tensor_data_from_proto

VOCABULARY = 64


@dataclass
class Bigrams:
    """Weights, the optimizer's moments, and the first tokens of all rows of each step."""

    logits: np.ndarray
    moments: list[np.ndarray]
    steps: list[list[int]] = field(default_factory=list)

    def log_probs(self) -> np.ndarray:
        """Of each next token, by the token before it."""
        peak = self.logits.max(axis=1, keepdims=True)
        return self.logits - peak - np.log(np.exp(self.logits - peak).sum(axis=1, keepdims=True))


@dataclass
class TinkerModel:
    """What a training client works on."""

    weights: Bigrams
    gradient: np.ndarray
    rows: list[int] = field(default_factory=list)


class TinkerServer:
    """Models by id and snapshots by path. `requests` lists the paths in order of arrival."""

    def __init__(self) -> None:
        self.models: dict[str, TinkerModel] = {}
        self.states: dict[str, Bigrams] = {}
        self.samplers: dict[str, Bigrams] = {}
        self.requests: list[str] = []
        self._numbers = itertools.count(1)
        self._answers: dict[str, Any] = {}
        self._lock = threading.Lock()

    @staticmethod
    def untrained() -> Bigrams:
        """The weights of every new client."""
        logits = np.random.default_rng(7).normal(size=(VOCABULARY, VOCABULARY))
        return Bigrams(logits, [np.zeros_like(logits), np.zeros_like(logits)])

    def sample(self, weights: Bigrams, prompt: Sequence[int], seed: int) -> tuple[list, list]:
        """Four tokens after a prompt, and their logprobs in float32."""
        random = np.random.default_rng(seed)
        table, last = weights.log_probs(), prompt[-1]
        ids, logprobs = [], []
        for _ in range(4):
            drawn = int(random.choice(VOCABULARY, p=np.exp(table[last])))
            logprobs.append(float(np.float32(table[last, drawn])))
            ids.append(last := drawn)
        return ids, logprobs

    def respond(self, path: str, body: bytes) -> tuple[str, bytes]:
        """Content type and body of the answer."""
        with self._lock:
            self.requests.append(path)
            if path == "forward_backward":
                request = pb.ForwardBackwardRequest.FromString(body)
                return _json(self._later(self._forward_backward(request)))
            given = json.loads(body or b"{}")
            if path.startswith("sessions/"):
                return _json({})  # its end
            if path == "retrieve_future":
                answer = self._answers[given["request_id"]]
                proto = isinstance(answer, bytes)
                return ("application/x-protobuf", answer) if proto else _json(answer)
            return _json(getattr(self, f"_{path.replace('/', '_')}")(given))

    def _later(self, answer: Any) -> dict[str, str]:
        name = f"request-{next(self._numbers)}"
        self._answers[name] = answer
        return {"request_id": name}

    def _client_config(self, _: Any) -> dict[str, Any]:
        return {"use_pyqwest_transport": False}

    def _client_dynamic_config(self, _: Any) -> dict[str, Any]:
        return {}

    def _create_session(self, _: Any) -> dict[str, str]:
        return {"session_id": f"session-{next(self._numbers)}"}

    def _session_heartbeat(self, _: Any) -> dict[str, str]:
        return {}

    def _telemetry(self, _: Any) -> dict[str, str]:
        return {"status": "accepted"}

    def _get_info(self, given: Any) -> dict[str, Any]:
        return {"model_id": given["model_id"], "model_data": {"model_name": "bigrams"}}

    def _create_model(self, given: Any) -> dict[str, str]:
        name = self._open(given, self.untrained())
        return self._later({"type": "create_model", "model_id": name})

    def _load_weights(self, given: Any) -> dict[str, str]:
        assert given["optimizer"], "a state without its optimizer is another training"
        name = self._open(given, deepcopy(self.states[given["path"]]))
        return self._later({"type": "load_weights", "model_id": name, "path": given["path"]})

    def _open(self, given: Any, weights: Bigrams) -> str:
        name = f"{given['session_id']}:train:{given['model_seq_id']}"
        self.models[name] = TinkerModel(weights, np.zeros_like(weights.logits))
        return name

    def _save_weights(self, given: Any) -> dict[str, str]:
        path = f"tinker://{given['model_id']}/weights/{given['path']}"
        self.states[path] = deepcopy(self.models[given["model_id"]].weights)
        return self._later({"type": "save_weights", "path": path})

    def _save_weights_for_sampler(self, given: Any) -> dict[str, str]:
        path = f"tinker://{given['model_id']}/sampler_weights/{given['path']}"
        self.samplers[path] = deepcopy(self.models[given["model_id"]].weights)
        return self._later({"type": "save_weights_for_sampler", "path": path})

    def _forward_backward(self, request: pb.ForwardBackwardRequest) -> bytes:
        assert request.loss_fn == "importance_sampling"
        model = self.models[request.model_id]
        table = model.weights.log_probs()
        found, loss = [], 0.0
        for datum in request.data:
            tokens = np.frombuffer(datum.model_input[0].encoded_text.tokens, dtype=np.int32)
            fields = datum.loss_fn_inputs
            target, logprobs, advantages = (
                _tensor_data_from_proto(fields[name]).to_numpy()
                for name in ("target_tokens", "logprobs", "advantages")
            )
            ours = table[tokens, target]
            weight = np.exp(ours - logprobs) * advantages
            loss -= weight.sum()
            for before, token, share in zip(tokens, target, weight, strict=True):
                model.gradient[before] += share * np.exp(table[before])
                model.gradient[before, token] -= share
            found.append(ours.astype(np.float32))
            model.rows.append(int(tokens[0]))
        return _output(found, {"loss:sum": float(loss)})

    def _optim_step(self, given: Any) -> dict[str, str]:
        model, params = self.models[given["model_id"]], given["adam_params"]
        first, second = model.weights.moments
        first += (1 - params["beta1"]) * (model.gradient - first)
        second += (1 - params["beta2"]) * (model.gradient**2 - second)
        model.weights.logits -= params["learning_rate"] * first / (np.sqrt(second) + params["eps"])
        model.weights.steps.append(model.rows)
        model.gradient, model.rows = np.zeros_like(model.gradient), []
        return self._later({"type": "optim_step"})


def _json(answer: Any) -> tuple[str, bytes]:
    return "application/json", json.dumps(answer).encode()


def _output(logprobs: list[np.ndarray], metrics: dict[str, float]) -> bytes:
    ends = np.cumsum([0, *(each.nbytes for each in logprobs)], dtype=np.int64)
    data = b"".join(each.tobytes() for each in logprobs)
    batch = pb.BatchedTensor(data=data, offsets=ends.tobytes(), dtype=pb.DTYPE_FLOAT32)
    record = pb.ArrayRecord(fields={"logprobs": batch}, num_datums=len(logprobs))
    made = pb.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record], metrics=metrics
    )
    return made.SerializeToString()


@contextmanager
def tinker_server() -> Iterator[tuple[TinkerServer, str]]:
    """The server and its base URL."""
    state = TinkerServer()

    class Handler(QuietHandler):
        # One request a connection (HTTP/1.0), since the SDK leaves connections open for ever.
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status = 200
            try:
                kind, data = state.respond(self.path.removeprefix("/api/v1/"), body)
            except (AssertionError, AttributeError, LookupError, ValueError) as error:
                # As a 500 the SDK would repeat it for minutes.
                status = 422
                kind, data = _json({"error": repr(error)})
            self.answer(status, data, kind)

    with served_http(Handler) as url:
        yield state, url
