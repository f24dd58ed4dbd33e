"""A model engine with a paged KV cache, as vLLM and SGLang work: continuous batching.

Blocks of a context stay cached when its call ends, and are evicted, least recently used first and
from the end of the context, when others need room. A call pays for the part of its prompt that is
not cached. If running calls outgrow the cache, the youngest is preempted and computed again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """Times of one engine; the defaults are those of a model of 8 billion weights on one H100."""

    kv_tokens: int = 400_000
    """Tokens that the cache holds: 52 GB at 128 KB a token."""
    step_s: float = 0.008
    """A step reads all weights."""
    seq_s: float = 30e-6
    """More for each sequence that is decoded."""
    kv_s: float = 50e-9
    """More for each token of their contexts, which is read."""
    prefill_s: float = 45e-6
    """A token of a prompt."""
    chunk: int = 8192
    """Most tokens of prompts in one step."""
    max_running: int = 256
    block: int = 16


class Call:
    """One request: `prompt` tokens of context, then `reply` tokens."""

    __slots__ = ("done", "key", "left", "prompt", "todo")

    def __init__(self, key: int, prompt: int, reply: int, done: Callable[[float], None]) -> None:
        self.key, self.prompt, self.left, self.done = key, prompt, reply, done
        self.todo = 0
        """Tokens of the prompt that are not computed yet."""


class Engine:
    """Runs calls; `advance` makes one or several steps."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.now = 0.0
        self.waiting: deque[Call] = deque()
        self.prefilling: deque[Call] = deque()
        self.decoding: list[Call] = []
        self.in_use = 0
        """Tokens of running calls."""
        self.cached: OrderedDict[int, int] = OrderedDict()
        """Tokens of contexts that no call uses, by key, the least recently used first."""
        self.cached_total = 0
        self.context = 0
        """Tokens of all contexts that are decoded."""
        self.queries = self.hits = self.preemptions = self.generated = 0
        self.busy_s = 0.0

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def submit(self, call: Call) -> None:
        self.waiting.append(call)

    def _rounded(self, tokens: int) -> int:
        block = self.hardware.block
        return (tokens + block - 1) // block * block

    def _room(self, needed: int) -> bool:
        """Evict until so many more tokens fit; False if running calls leave no room."""
        kv = self.hardware.kv_tokens
        if self.in_use + needed > kv:
            return False
        excess = self.in_use + self.cached_total + needed - kv
        while excess > 0:
            key, held = next(iter(self.cached.items()))
            taken = min(held, self._rounded(excess))
            self.cached_total -= taken
            excess -= taken
            if taken == held:
                del self.cached[key]
            else:
                self.cached[key] = held - taken
        return True

    def _admit(self) -> None:
        while self.waiting and self.running < self.hardware.max_running:
            call = self.waiting[0]
            held = self.cached.get(call.key, 0)
            kept = min(held, call.prompt - 1) // self.hardware.block * self.hardware.block
            # Its own blocks are used, not evicted.
            if held:
                del self.cached[call.key]
                self.cached_total -= held
            if not self._room(call.prompt):
                if held:
                    self.cached[call.key] = held
                    self.cached.move_to_end(call.key, last=False)
                    self.cached_total += held
                return
            self.waiting.popleft()
            self.in_use += call.prompt
            call.todo = call.prompt - kept
            self.queries += call.prompt
            self.hits += kept
            self.prefilling.append(call)

    def _release(self, call: Call) -> None:
        self.in_use -= call.prompt
        self.cached[call.key] = call.prompt
        self.cached.move_to_end(call.key)
        self.cached_total += call.prompt

    def _preempt(self) -> bool:
        """Send the youngest running call back to the queue."""
        if self.prefilling:
            call = self.prefilling.pop()
            self.in_use -= call.prompt
        elif len(self.decoding) > 1:
            call = self.decoding.pop()
            self.context -= call.prompt
            self._release(call)
        else:
            return False
        self.preemptions += 1
        self.waiting.appendleft(call)
        return True

    def advance(self, until: float) -> None:
        """Make steps up to the first end of a reply, at most until then."""
        while self.now < until:
            self._admit()
            if not self.running:
                self.now = until
                return
            chunked, computed = self._prefill()
            steps = self._steps(until) if self.decoding and not chunked else 1
            steps = self._make_room(steps)
            self._pass(steps, chunked)
            ended = self._decode(steps)
            for call in computed:
                self.decoding.append(call)
                self.context += call.prompt
            if ended:
                for call in ended:
                    call.done(self.now)
                return

    def _prefill(self) -> tuple[int, list[Call]]:
        """Compute a chunk of prompts; returns its size and the calls whose prompt is complete."""
        budget, chunked, computed = self.hardware.chunk - len(self.decoding), 0, []
        while self.prefilling and budget > 0:
            call = self.prefilling[0]
            part = min(call.todo, budget)
            call.todo -= part
            budget -= part
            chunked += part
            if call.todo == 0:
                computed.append(self.prefilling.popleft())
        return chunked, computed

    def _step_s(self) -> float:
        hardware, count = self.hardware, len(self.decoding)
        return hardware.step_s + hardware.seq_s * count + hardware.kv_s * self.context

    def _steps(self, until: float) -> int:
        """Steps in which nothing else happens; taken at once, they are simulated faster."""
        least = min(call.left for call in self.decoding)
        return max(1, min(least, int((until - self.now) / self._step_s()) + 1, 64))

    def _make_room(self, steps: int) -> int:
        """Evict or preempt until the running calls can grow; returns by how many steps."""
        while self.decoding and not self._room(steps * len(self.decoding)):
            if steps > 1:
                steps = 1
            elif not self._preempt():
                break
        return steps

    def _pass(self, steps: int, chunked: int) -> None:
        took_s = steps * self._step_s() + chunked * self.hardware.prefill_s
        self.now += took_s
        self.busy_s += took_s

    def _decode(self, steps: int) -> list[Call]:
        """Add a token in each step; returns the calls that have ended."""
        grown = steps * len(self.decoding)
        self.generated += grown
        self.in_use += grown
        self.context += grown
        for call in self.decoding:
            call.prompt += steps
            call.left -= steps
        ended = [call for call in self.decoding if call.left <= 0]
        for call in ended:
            self.decoding.remove(call)
            self.context -= call.prompt
            self._release(call)
        return ended
