import os


def mode(path):
    return os.stat("/home/user/keys" + path).st_mode & 0o777


def test_modes():
    assert mode("") == 0o700
    assert [mode(f"/{name}.key") for name in "abc"] == [0o600] * 3


def test_public_stays():
    assert mode("/public") == 0o755
    assert mode("/public/a.pub") == 0o755
