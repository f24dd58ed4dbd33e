import json


def test_version():
    assert json.load(open("/home/user/project/package.json")) == {
        "name": "project",
        "version": "1.3.0",
    }


def test_changelog():
    lines = [line for line in open("/home/user/project/CHANGELOG.md").read().splitlines() if line]
    assert lines == ["## [1.3.0] - 2025-05-01", "## [1.2.3] - 2025-04-04", "- Fix the form"]
