"""What the tests of all adapters share; each adapter's tests run in an environment of its own.

`make test-trainers NAME=trl` runs test_trl.py. Nothing here imports a trainer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
TEST_TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))
