"""The conformance suite when the worker is not root."""

from __future__ import annotations

import os

import pytest
from ordinary_user import pytest_as_user

EVERY_BACKEND = pytest.param((), marks=pytest.mark.exhaustive, id="every backend")
RIGHTS = ("-m", "'rights and not exhaustive'", "-k", "'not unfenced and not modal'")
LOCAL = pytest.param(RIGHTS, id="local")
"""What depends on rights, on the backend that depends on them most."""


@pytest.mark.fleet
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("chosen", [LOCAL, EVERY_BACKEND] if os.geteuid() == 0 else [])
def test_conformance_as_an_ordinary_user(cache, chosen):
    done = pytest_as_user(cache, "tests/plugins/selfcheck/test_conformance.py", *chosen)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
