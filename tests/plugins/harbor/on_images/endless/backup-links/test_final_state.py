import os


def test_links():
    assert os.readlink("/home/user/newest") == "/home/user/backups/backup-2024-11-30.tar"
    assert os.readlink("/home/user/oldest") == "/home/user/backups/backup-2023-02-01.tar"
