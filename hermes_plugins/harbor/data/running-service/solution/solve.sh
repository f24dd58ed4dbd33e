#!/bin/bash
set -eu
python3 - <<'PY'
import json
import urllib.request

base = "http://127.0.0.1:8765"
number = json.load(urllib.request.urlopen(base + "/ticket"))["number"]
stamp = json.load(urllib.request.urlopen(base + "/stamp", json.dumps({"number": number}).encode()))["stamp"]
open("/app/stamp.txt", "w").write(stamp + "\n")
PY
