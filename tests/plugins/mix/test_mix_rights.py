"""Mixes under the users of Redis that we ship."""

from __future__ import annotations

import json

from mixes import write_mix

HQ = "hermes-queue"


def test_a_producer_serves_a_mix_and_a_monitor_looks_at_it(guarded, as_role, tmp_path):
    file = write_mix(tmp_path, {"a": "epochs = 1"}, head='name = "mixed"', rows=3)
    served = as_role("producer", HQ, "mix", str(file))
    assert served.returncode == 0, served.stderr
    assert as_role("producer", HQ, "mix", "set", "mixed", "a.weight=2").returncode == 0
    shown = as_role("monitor", HQ, "mix", "show", "mixed", "--json")
    assert json.loads(shown.stdout)["sources"]["a"]["items"] == 3
    assert as_role("monitor", HQ, "mix", "set", "mixed", "a.weight=2").returncode == 4
    assert as_role("producer", HQ, "mix", "forget", "mixed").returncode == 0
