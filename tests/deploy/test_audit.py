"""`make audit` fails on vulnerabilities that are known and not accepted, and on nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guarded_redis import ROOT
from ports import free_port
from served_http import QuietHandler, served_http

LOCK = f"badpackage==1.0 --hash=sha256:{'0' * 64}\n"
VULNERABILITY = {
    "id": "PYSEC-2099-1",
    "modified": "2099-01-01T00:00:00Z",
    "summary": "it is bad",
    "affected": [
        {
            "package": {"name": "badpackage", "ecosystem": "PyPI"},
            "ranges": [
                {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.0"}]},
            ],
            "versions": ["1.0"],
        }
    ],
}


@pytest.fixture
def database() -> Iterator[str]:
    """The address of an OSV server that knows one vulnerability."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, json.dumps({"vulns": [VULNERABILITY]}).encode())

    with served_http(Handler) as url:
        yield f"{url}/v1/query"


@pytest.fixture
def audit(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    lock, accepted = tmp_path / "lock.txt", tmp_path / "accepted.txt"
    lock.write_text(LOCK)

    def run(url: str, accept: str = "") -> subprocess.CompletedProcess[str]:
        accepted.write_text(accept)
        program = Path(sys.executable).parent / "pip-audit"
        command = ["bash", ROOT / "deploy/audit.sh", program, lock]
        return subprocess.run(
            [*command, "--vulnerability-service", "osv", "--osv-url", url],
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "AUDIT_ACCEPTED": str(accepted)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def test_a_known_vulnerability_fails_and_is_named(audit, database):
    done = audit(database)
    assert done.returncode == 1, done.stderr
    assert "PYSEC-2099-1" in done.stdout


def test_one_that_is_accepted_with_a_reason_does_not(audit, database):
    done = audit(database, "# a comment\n\nPYSEC-2099-1 nothing of ours calls it\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT DONE" not in done.stderr


def test_one_without_a_reason_is_not_accepted(audit, database):
    done = audit(database, "PYSEC-2099-1\n")
    assert done.returncode == 2
    assert "gives no reason for PYSEC-2099-1" in done.stderr


def test_a_database_out_of_reach_fails_nothing_and_is_said(audit):
    done = audit(f"http://127.0.0.1:{free_port()}/v1/query")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.startswith("audit: NOT DONE")
