import os


def test_inbox():
    assert sorted(os.listdir("/home/user/inbox")) == list("abcde")
