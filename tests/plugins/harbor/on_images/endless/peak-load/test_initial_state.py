def test_log():
    assert len(open("/var/log/load.log").readlines()) == 96
