import json
import urllib.request
from collections import Counter
from pathlib import Path

orders, page = [], 1
while True:
    with urllib.request.urlopen(f"http://web:8080/orders?page={page}", timeout=20) as answer:
        found = json.load(answer)["orders"]
    if not found:
        break
    orders, page = orders + found, page + 1
assert len(orders) == 138, len(orders)
expected = Counter()
for order in orders:
    if order["state"] == "paid":
        expected[order["customer"]] += order["cents"]
assert len(expected) > 5
assert json.loads(Path("/app/totals.json").read_text()) == expected
