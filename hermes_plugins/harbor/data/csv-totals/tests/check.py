import json
from pathlib import Path

expected = {"rent": 2400.0, "cloud": 160.0, "books": 30.65, "travel": 325.92}
found = json.loads(Path("/app/totals.json").read_text())
assert set(found) == set(expected), sorted(found)
for name, total in expected.items():
    assert abs(found[name] - total) < 0.005, (name, found[name], total)
