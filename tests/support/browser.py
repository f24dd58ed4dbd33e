"""A headless Chromium, which may reach nothing but this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from selenium import webdriver

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()


def chromium(profile: Path) -> webdriver.Chrome:
    """Started, with `profile` as its empty directory; to be quit."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.add_argument("--window-size=1280,900")
    service = webdriver.ChromeService(shutil.which("chromedriver") or "/usr/bin/chromedriver")
    return webdriver.Chrome(options=options, service=service)


def keep(page: webdriver.Chrome, name: str) -> None:
    """Keep what is seen as a picture, if SCREENSHOTS names a directory."""
    if directory := os.environ.get("SCREENSHOTS"):
        page.save_screenshot(str(Path(directory) / f"{name}.png"))
