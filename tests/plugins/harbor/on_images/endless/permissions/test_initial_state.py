import os


def test_open():
    assert os.stat("/home/user/keys").st_mode & 0o777 == 0o755
