#!/bin/bash
set -eu
python3 - <<'PY'
import math
from collections import defaultdict

found = defaultdict(list)
for line in open("/var/log/shop/access.log"):
    parts = line.split()
    if len(parts) == 6:
        found[parts[3].split("?")[0]].append((int(parts[4]), round(float(parts[5]) * 1000)))
with open("/app/report.csv", "w") as report:
    print("path,requests,errors,p95_ms", file=report)
    for path, requests in sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        times = sorted(ms for _, ms in requests)
        p95 = times[math.ceil(0.95 * len(times)) - 1]
        print(path, len(requests), sum(status >= 500 for status, _ in requests), p95, sep=",", file=report)
PY
