#!/bin/bash
set -eu
python3 - <<'PY'
import csv, json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

data = Path("/app/data")
rates = {name: Decimal(str(rate)) for name, rate in json.loads((data / "rates.json").read_text()).items()}
totals = defaultdict(Decimal)
for path in sorted(data.glob("*.csv")):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    for row in csv.DictReader(lines):
        totals[row["account"]] += Decimal(row["amount"]) * rates[row["currency"]]
Path("/app/totals.json").write_text(json.dumps({name: float(round(sum_, 2)) for name, sum_ in totals.items() if sum_}))
PY
