"""The viewer's page in a real browser, which reports requests and breaches of its policy."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from browser import chromium, keep
from selenium import webdriver
from selenium.common.exceptions import JavascriptException, WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from view_fixture import ViewedPages
from view_server import OPERATE_TOKEN, VIEW_TOKEN
from worker_process import wait_until

T = TypeVar("T")
WATCH = """
window.breaches = [];
addEventListener("securitypolicyviolation", (event) =>
  window.breaches.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));
addEventListener("error", (event) => window.breaches.push(`error: ${event.message}`));
addEventListener("unhandledrejection", (event) =>
  window.breaches.push(`rejection: ${event.reason}`));
"""
"""Runs before any script of the page."""
CALM = """return document.readyState === "complete" && !document.querySelector("main .waiting")
  && Boolean(document.querySelector("main"));"""


class Viewed:
    """One browser at the pages of `pages`."""

    def __init__(self, pages: ViewedPages, profile: Path) -> None:
        self.pages = pages
        self._watch(chromium(profile))

    def _watch(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        self.size(1280, 900)

    def close(self) -> None:
        self.driver.quit()

    # --- places ----------------------------------------------------------------------------

    def login(self, *, operate: bool = False) -> None:
        """Forget who we are, and open the address that the command prints."""
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.driver.get("about:blank")
        self.driver.get(f"{self.pages.address}/#token={OPERATE_TOKEN if operate else VIEW_TOKEN}")
        self.wait("the first page", lambda: self.all("header.top") and not self.all(".waiting"))

    def open(self, path: str, **parameters: object) -> None:
        """Open a page, and wait until it shows what it asked for."""
        query = urllib.parse.urlencode({k: v for k, v in parameters.items() if v is not None})
        self.driver.get(f"{self.pages.address}{path}{'?' + query if query else ''}")
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is awaited."""
        self.wait("the page", lambda: bool(self.run(CALM)))

    @property
    def address(self) -> str:
        """Path and query of the page, decoded."""
        parts = urllib.parse.urlsplit(self.driver.current_url)
        return urllib.parse.unquote_plus(parts.path + (f"?{parts.query}" if parts.query else ""))

    def size(self, width: int, height: int, scale: float = 1.0) -> None:
        """The window in pixels of the page."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def theme(self, name: str) -> None:
        """`light` or `dark`, as the system asks for it."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def keep(self, name: str) -> None:
        """Keep a picture, if SCREENSHOTS names a directory."""
        keep(self.driver, f"view-{name}")

    # --- what is seen ------------------------------------------------------------------------

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Texts of elements, folded ones too, with blanks made one."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent);"
        return [re.sub(r"\s+", " ", text).strip() for text in self.run(script, selector)]

    @property
    def text(self) -> str:
        """All text of the page, folded parts too."""
        return str(self.run("return document.body.textContent;"))

    def wait(self, what: str, condition: Callable[[], T], timeout_s: float = 20) -> T:
        def met() -> T | None:
            try:
                return condition()
            except (JavascriptException, WebDriverException, IndexError):
                return None

        found: Any = wait_until(what, met, timeout_s=timeout_s)
        return cast(T, found)

    def says(self, text: str) -> None:
        """Wait until the page has a text."""
        self.wait(f"the page says {text!r}", lambda: text in self.text)

    @property
    def breaches(self) -> list[str]:
        """What broke the policy of the page, or failed in it."""
        return list(self.run("return window.breaches || ['not watched'];"))

    def requests(self) -> list[str]:
        """Addresses that the page has asked for."""
        script = """return performance.getEntries()
          .filter((each) => ["navigation", "resource"].includes(each.entryType))
          .map((each) => each.name);"""
        return list(self.run(script))

    # --- what one does -----------------------------------------------------------------------

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def focused(self) -> str:
        """Text of what has the focus."""
        text: str = self.run("return document.activeElement.textContent;")
        return re.sub(r"\s+", " ", text).strip()

    def click(self, selector: str) -> None:
        """Click the first one, as a person would: it must be seen."""
        element = self.one(selector)
        self.run("arguments[0].scrollIntoView({block: 'center'});", element)
        element.click()

    # --- the API, asked by a program ---------------------------------------------------------

    def api(self, path: str, **parameters: object) -> Any:
        """What the API says to the same question."""
        query = urllib.parse.urlencode(parameters)
        said = self.pages.server.get(f"{path}{'?' + query if query else ''}")
        assert said.status == 200, said.body
        return said.json

    def axe(self, script: str) -> list[dict[str, Any]]:
        """What axe-core finds wrong with the page as it is."""
        if not self.run("return Boolean(window.axe);"):
            self.run(script)
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {resultTypes: ['violations']}).then((r) => done(JSON.stringify("
            "r.violations.map((v) => ({id: v.id, help: v.help, nodes: v.nodes.slice(0, 4).map("
            "(n) => n.html.slice(0, 200) + ' | ' + (n.any[0]?.message || '')) })))));"
        )
        result: list[dict[str, Any]] = json.loads(found)
        return result


__all__ = ["Keys", "Viewed"]
