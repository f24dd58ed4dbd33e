from pathlib import Path

assert Path("/srv/reports/release.txt").read_text().split("\n") == ["4.2", "wanderer", "5", ""]
