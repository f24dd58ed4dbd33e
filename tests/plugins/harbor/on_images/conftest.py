"""The backend that HARBOR_SANDBOX names, for tests of tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harbor_backends import harbor_backend
from validated_tasks import WANTED


@pytest.fixture(scope="module")
def backend() -> Iterator[None]:
    """What the backend talks to, where the tests provide it, and the settings for it."""
    with harbor_backend(WANTED) as settings, pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield
