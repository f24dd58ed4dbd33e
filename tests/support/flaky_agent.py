"""An agent whose endpoint fails in the first attempts: `--agent flaky_agent:flaky`."""

from __future__ import annotations

from hermes_queue.agent.chat import Reply
from hermes_queue.errors import ModelError
from hermes_queue.models import Message, Turn


class _Flaky:
    def __init__(self, failing: bool, message: str) -> None:
        self._failing = failing
        self._message = message

    async def complete(self, messages, tools, sampling, deadline):
        if self._failing:
            raise ModelError(self._message)
        return Reply(Message(role="assistant", content="24"), Turn(finish_reason="stop"))


def flaky(spec, script, settings):
    message = spec.params.get("message", "503")
    return _Flaky(script.endpoint_failures < spec.params.get("failures", 1), message)
