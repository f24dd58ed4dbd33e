"""Who may call the engine, and when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from benchmarks.engines.engine import Engine
from hermes_queue.settings import EngineSettings
from workers.calls.pressure import Pressure, Reading, steered

Go = Callable[[float], None]
AHEAD, MARGIN = 0.7, 0.05
"""As in `lua/flights/places.lua`."""


class Policy:
    """Lets every call through at once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def call(self, flight: int, tokens: int, go: Go, now: float) -> None:
        """A trajectory wants to call, with a context of so many tokens; `go` lets it."""
        go(now)

    def replied(self, flight: int, tokens: int, now: float) -> None:
        """Its context after the reply."""

    def ended(self, flight: int, now: float) -> None:
        """It makes no more calls."""

    def tick(self, now: float) -> None:
        """Some time has passed."""


class CallCap(Policy):
    """A fixed number of concurrent calls."""

    def __init__(self, engine: Engine, cap: float) -> None:
        super().__init__(engine)
        self.cap, self.open = cap, 0
        self.queue: deque[Go] = deque()

    def call(self, flight: int, tokens: int, go: Go, now: float) -> None:
        self.queue.append(go)
        self._start(now)

    def _start(self, now: float) -> None:
        while self.queue and self.open < int(self.cap):
            self.open += 1
            self.queue.popleft()(now)

    def replied(self, flight: int, tokens: int, now: float) -> None:
        self.open -= 1
        self._start(now)


class By429(CallCap):
    """The cap of concurrent calls that refusals drive; a gateway refuses while so many wait."""

    def __init__(self, engine: Engine, refuses_at: int = 16) -> None:
        super().__init__(engine, 32)
        self.refuses_at, self.steady, self.shrunk = refuses_at, 0, -1.0
        self.ceiling: float | None = None

    def _start(self, now: float) -> None:
        while self.queue and self.open < int(self.cap):
            if len(self.engine.waiting) >= self.refuses_at:
                if now - self.shrunk > 1.0:
                    self.shrunk, self.steady = now, 0
                    self.ceiling = max(1, self.open - 1)
                    self.cap = max(1.0, 0.8 * min(self.cap, max(self.open, self.cap / 2)))
                return
            self.open += 1
            self.queue.popleft()(now)

    def replied(self, flight: int, tokens: int, now: float) -> None:
        if self.open >= 0.9 * int(self.cap):
            self.steady += 1
            if self.ceiling is None:
                self.cap += 1
            elif self.cap < self.ceiling:
                self.cap = min(self.ceiling, self.cap + max(0.05, 1 / self.cap))
            elif self.steady >= 20 * self.cap:
                self.cap += max(0.05, 1 / self.cap)
        super().replied(flight, tokens, now)

    def tick(self, now: float) -> None:
        self._start(now)


class FlightCap(Policy):
    """A fixed number of trajectories between their first call and their last."""

    def __init__(self, engine: Engine, cap: int) -> None:
        super().__init__(engine)
        self.cap, self.flying = cap, set[int]()
        self.queue: deque[tuple[int, Go]] = deque()

    def call(self, flight: int, tokens: int, go: Go, now: float) -> None:
        if flight in self.flying:
            go(now)
            return
        self.queue.append((flight, go))
        self._start(now)

    def _start(self, now: float) -> None:
        while self.queue and len(self.flying) < self.cap:
            flight, go = self.queue.popleft()
            self.flying.add(flight)
            go(now)

    def ended(self, flight: int, now: float) -> None:
        self.flying.discard(flight)
        self._start(now)


class KvTokens(Policy):
    """Contexts in flight up to what the cache holds: the rules of `lua/flights.lua`."""

    def __init__(self, engine: Engine, settings: EngineSettings | None = None) -> None:
        super().__init__(engine)
        self.settings = settings or EngineSettings()
        self.pressure = Pressure(engine.hardware.kv_tokens, self.settings.fill)
        self.flying: dict[int, int] = {}
        self.known: dict[int, list[int]] = {}
        """Contexts after each reply."""
        self.since: dict[int, int] = {}
        self.waiting: list[tuple[int, int, int, Go]] = []
        self.usual = 0.0
        self.grown = self.bound = self.stops = self.begun = 0

    def call(self, flight: int, tokens: int, go: Go, now: float) -> None:
        if flight in self.flying:
            go(now)
            return
        self.begun += 1
        self.waiting.append((self.since.setdefault(flight, self.begun), flight, tokens, go))
        self.waiting.sort(key=lambda each: each[0])
        self._start(now)

    def _start(self, now: float) -> None:
        ahead, most = AHEAD * self.usual, self._room() - MARGIN * self.pressure.kv_tokens
        taken = sum(max(size, ahead) for size in self.flying.values())
        while self.waiting:
            _, flight, tokens, go = self.waiting[0]
            need = max(tokens, ahead)
            if len(self.flying) >= self.settings.min_trajectories and taken + need > most:
                self.bound += 1
                return
            self.waiting.pop(0)
            self.flying[flight] = tokens
            self.grown += self.known.setdefault(flight, [0])[-1]
            taken += need
            go(now)

    def _room(self) -> float:
        return self.pressure.kv_tokens * self.pressure.level

    def replied(self, flight: int, tokens: int, now: float) -> None:
        contexts = self.known[flight]
        self.grown += max(0, tokens - contexts[-1])
        contexts.append(tokens)
        if flight in self.flying:
            self.flying[flight] = tokens

    def ended(self, flight: int, now: float) -> None:
        self.flying.pop(flight, None)
        del self.since[flight]
        contexts = self.known.pop(flight)
        mean = sum(contexts) / (len(contexts) - 1)
        self.usual = 0.95 * self.usual + 0.05 * mean if self.usual else mean
        self._start(now)

    def tick(self, now: float) -> None:
        engine = self.engine
        reading = Reading(
            engine.hardware.kv_tokens,
            engine.running,
            len(engine.waiting),
            preemptions=engine.preemptions,
            queries=engine.queries,
            hits=engine.hits,
            generated=engine.generated,
        )
        found = steered(self.pressure, reading, self.grown, self.bound, self.settings)
        self.pressure = found or self.pressure
        actual = sum(self.flying.values())
        for flight in sorted(self.flying, key=lambda each: -self.since[each]):
            if actual <= self._room() or len(self.flying) <= self.settings.min_trajectories:
                break
            actual -= self.flying.pop(flight)
            self.stops += 1
        self._start(now)
