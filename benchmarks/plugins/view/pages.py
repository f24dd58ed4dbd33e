"""A page in a headless Chromium, as the DevTools protocol measures it.

CPU is that of the page's main thread. Before each page a small one of the same server is opened, so
that the start of the process is not counted; profile and cache are empty.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import JavascriptException, WebDriverException

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --window-size=1280,900 "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--disable-features=BackForwardCache"
).split()
POLL_S = 0.05
QUIET_S, QUIET_CPU_S = 1.0, 0.01
"""A page is at rest when it used so little within this time."""
WATCH = """
performance.setResourceTimingBufferSize(100000);
window.streams = 0;
window.EventSource = class extends EventSource {
  constructor(...all) { super(...all); window.streams++; }
};
"""
"""Requests of streams are told by nobody before they end."""
SIZES = """
const all = ["navigation", "resource"].flatMap((type) => performance.getEntriesByType(type));
const isData = (each) => new URL(each.name).pathname.startsWith("/api/");
const sum = (entries) => entries.reduce((total, each) => total + each.transferSize, 0);
const [paint] = performance.getEntriesByName("first-contentful-paint");
return {
  code_bytes: sum(all.filter((each) => !isData(each))), data_bytes: sum(all.filter(isData)),
  requests: all.length + window.streams, first_paint_s: (paint ? paint.startTime : 0) / 1000,
  elements: document.querySelectorAll("*").length,
};
"""


class TooSlow(RuntimeError):
    """A page did not show what it should in time."""


@dataclass(frozen=True)
class Place:
    """Where a page is."""

    origin: str
    small: str
    """Path of a small page or file of the same server."""
    cookie: tuple[str, str] | None = None


class Browser:
    """One Chromium with an empty profile."""

    def __init__(self, place: Place, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(shutil.which("chromedriver") or "/usr/bin/chromedriver")
        self.driver = webdriver.Chrome(options=options, service=service)
        self._place = place
        self._devtools("Performance.enable", timeDomain="threadTicks")
        self._devtools("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        if place.cookie:
            name, value = place.cookie
            self._devtools("Network.setCookie", name=name, value=value, url=place.origin)
        self.driver.get(place.origin + place.small)

    @property
    def pid(self) -> int:
        """Of the process below which all of Chromium runs."""
        return int(self.driver.service.process.pid)

    def _devtools(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)

    def _metrics(self) -> dict[str, float]:
        found = self._devtools("Performance.getMetrics")["metrics"]
        return {each["name"]: each["value"] for each in found}

    def run(self, script: str) -> Any:
        """Run it in the page."""
        return self.driver.execute_script(script)

    def open(self, path: str, ready: str, *, limit_s: float = 120.0) -> dict[str, float]:
        """Open a page; what it took until `ready`, an expression, holds, and until it rests.

        Raises:
            TooSlow: it does not hold in time.
        """
        address = self._place.origin + path
        return self.measured(lambda: self.driver.get(address), ready, limit_s=limit_s)

    def measured(self, act: Any, ready: str, *, limit_s: float = 120.0) -> dict[str, float]:
        """What the page does when one acts on it."""
        before, begun = self._metrics()["ThreadTime"], time.monotonic()
        act()
        self._until(ready, begun + limit_s)
        wall_s, shown = time.monotonic() - begun, self._metrics()["ThreadTime"]
        used = self._until_quiet(begun + limit_s)
        sizes = self.run(SIZES)
        self._devtools("HeapProfiler.collectGarbage")
        heap = self._metrics()["JSHeapUsedSize"]
        cpu = {"cpu_s": used - before, "cpu_shown_s": shown - before, "wall_s": wall_s}
        return {**cpu, "heap_bytes": heap, **sizes}

    def _until(self, ready: str, give_up: float) -> None:
        while time.monotonic() < give_up:
            with suppress(JavascriptException, WebDriverException):
                if self.run(f"return Boolean({ready});"):
                    return
            time.sleep(POLL_S)
        raise TooSlow(f"not shown: {ready}")

    def _until_quiet(self, give_up: float) -> float:
        """Main thread's CPU seconds once the page rests."""
        used = self._metrics()["ThreadTime"]
        while time.monotonic() < give_up:
            time.sleep(QUIET_S)
            before, used = used, self._metrics()["ThreadTime"]
            if used - before < QUIET_CPU_S:
                return before
        return used


@contextmanager
def browser(place: Place) -> Iterator[Browser]:
    """A Chromium of its own, at a small page."""
    with tempfile.TemporaryDirectory(prefix="hq-view-", ignore_cleanup_errors=True) as profile:
        opened = Browser(place, Path(profile))
        try:
            yield opened
        finally:
            opened.driver.quit()


def missing() -> str | None:
    """Why no page can be measured here."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "needs Chromium: apt-get install chromium chromium-driver"
    return None
