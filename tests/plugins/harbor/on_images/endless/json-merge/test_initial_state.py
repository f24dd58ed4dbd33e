import json


def test_files():
    assert json.load(open("/home/user/local.json"))["b"] is None
