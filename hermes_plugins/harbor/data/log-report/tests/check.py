from collections import defaultdict
from pathlib import Path

# The log as the image has it: the agent may have changed the file.
found = defaultdict(list)
state = 7
paths = ("/", "/cart", "/cart/pay", "/search", "/about")
for n in range(3000):
    state = state * 1103515245 + 12345 & 0x7FFFFFFF
    if n % 211 != 5:
        found[paths[(state >> 8) % 11 % 5]].append(
            ((state >> 12) % 17 == 0, (state >> 5) % 900 + 3)
        )
lines = ["path,requests,errors,p95_ms"]
for path, requests in sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])):
    times = sorted(ms for _, ms in requests)
    p95 = next(ms for ms in times if sum(other <= ms for other in times) * 20 >= len(times) * 19)
    lines.append(f"{path},{len(requests)},{sum(failed for failed, _ in requests)},{p95}")
assert Path("/app/report.csv").read_text().split() == lines
