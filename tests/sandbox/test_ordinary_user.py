"""The conformance suite, and what hostile commands may not do, when the worker is not root."""

from __future__ import annotations

import os

import pytest
from ordinary_user import USER, pytest_as_user


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("user", [USER] if os.geteuid() == 0 else [])
def test_conformance_as_an_ordinary_user(cache, user):
    files = [f"tests/sandbox/test_{name}.py" for name in ("conformance", "local_fence")]
    done = pytest_as_user(cache, *files)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
