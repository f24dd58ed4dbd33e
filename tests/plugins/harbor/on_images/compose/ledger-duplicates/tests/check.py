import json
from pathlib import Path

entries = json.loads(Path("/srv/ledger/export.json").read_text())
ids = [entry[0] for entry in entries]
assert len(ids) == 62, len(ids)
assert ids == sorted(set(ids)) and ids[:60] == list(range(1, 61)) and ids[60:] == [67, 68], ids
assert len({tuple(entry[1:]) for entry in entries}) == 62
