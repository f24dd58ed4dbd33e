import os


def test_backups_are_there():
    assert len(os.listdir("/home/user/backups")) == 3
    assert not os.path.lexists("/home/user/newest")
