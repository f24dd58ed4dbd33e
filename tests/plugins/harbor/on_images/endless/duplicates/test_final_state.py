import os


def test_rest():
    assert sorted(os.listdir("/home/user/inbox")) == ["a", "c"]
    assert open("/home/user/deleted.txt").read().split() == ["b", "d", "e"]
