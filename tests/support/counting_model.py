"""A token server whose model counts: its reply follows from the prompt, whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steps_env import CALL
from token_stub import TokenStub, decode


class CountingModel(TokenStub):
    """Calls the terminal once per turn, then says `done`."""

    def __init__(self, turns: int) -> None:
        super().__init__([], max_model_tokens=100_000)
        self.turns = turns
        self.sampled: list[int] = []
        """The turns that were asked for, in order."""

    def _answer(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if path != "/v1/completions":
            return super()._answer(path, body)
        turn = decode(body["prompt"]).count("assistant:") - 1
        self.sampled.append(turn)
        self.replies = [CALL % turn if turn < self.turns else "done"]
        answer = super()._answer(path, body)
        answer["usage"]["completion_tokens"] = len(answer["choices"][0]["token_ids"])
        return answer

    @property
    def agent(self) -> dict[str, Any]:
        """The agent of a job that samples here."""
        params = {"mode": "tokens", "server": "vllm", "parser": "hermes", "probe_tools": False}
        return {"kind": "openai", "model": "m", "base_url": self.url, "params": params}
