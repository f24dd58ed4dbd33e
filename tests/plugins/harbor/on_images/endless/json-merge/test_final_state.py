import json


def test_merged():
    assert json.load(open("/home/user/merged.json")) == {"a": {"x": 1, "y": 3}, "c": [2]}
