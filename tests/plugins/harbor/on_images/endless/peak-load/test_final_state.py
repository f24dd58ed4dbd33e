def test_peak():
    loads = [(n * 37) % 101 for n in range(96)]
    best = loads.index(max(loads))
    assert open("/home/user/peak.txt").read().strip() == f"{best // 4:02d}:{best % 4 * 15:02d}"
