"""Tasks of several containers on a real engine: `make test-harbor HARBOR_SANDBOX=docker`."""

from __future__ import annotations

from pathlib import Path

import pytest
from validated_tasks import TIMEOUT_S, WANTED, validated

TASKS = Path(__file__).parent / "compose"
MODES = {
    "shop-totals": "transplant",
    "ledger-duplicates": "separate",
    "stock-corrections": "restart",
}

pytestmark = [
    pytest.mark.timeout(TIMEOUT_S + 60),
    pytest.mark.skipif(WANTED != "docker", reason="services need HARBOR_SANDBOX=docker"),
    pytest.mark.usefixtures("backend"),
]


@pytest.mark.parametrize("task", MODES)
def test_a_task_with_services_rewards_its_solution_and_nothing_else(
    tmp_path: Path, task: str
) -> None:
    line = validated(tmp_path, TASKS, task)
    assert (line["verdict"], line["mode"]) == ("valid", MODES[task]), line
    assert len(line["modes"][line["mode"]]["tamper"]) == 8
