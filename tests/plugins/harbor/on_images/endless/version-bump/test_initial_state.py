import json


def test_version():
    assert json.load(open("/home/user/project/package.json"))["version"] == "1.2.3"
