import hashlib
from pathlib import Path

stamps = {hashlib.sha256(f"stamp {n}".encode()).hexdigest()[:20] for n in range(4711, 4800)}
assert Path("/app/stamp.txt").read_text().strip() in stamps
