import json
import urllib.request

with urllib.request.urlopen("http://stock:6000/", timeout=20) as answer:
    assert json.load(answer) == {"bolt": 120, "nut": 80, "gear": 3, "cog": 0}
