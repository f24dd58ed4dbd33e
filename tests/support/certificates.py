"""Certificates of a private CA, as somebody who runs Redis with TLS has them."""

from __future__ import annotations

import subprocess
from pathlib import Path


def _openssl(directory: Path, *arguments: str) -> None:
    command = ["openssl", *arguments]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make_authority(directory: Path, name: str) -> None:
    """`{name}.pem` and `{name}.key`: a CA."""
    _openssl(
        directory, "req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN=test {name}",
        "-keyout", f"{name}.key", "-out", f"{name}.pem",
        "-addext", "keyUsage=critical,keyCertSign",
    )  # fmt: skip


def make_certificate(directory: Path, name: str, subject: str, *, authority: str = "ca") -> None:
    """`{name}.pem` and `{name}.key` for `subject`, e.g. IP:127.0.0.1 or DNS:redis."""
    _openssl(
        directory, "req", *_KEY, "-subj", f"/CN={name}",
        "-keyout", f"{name}.key", "-out", f"{name}.csr",
    )  # fmt: skip
    (directory / f"{name}.san").write_text(f"subjectAltName={subject}\n")
    _openssl(
        directory, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem",
        "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "2",
        "-extfile", f"{name}.san", "-out", f"{name}.pem",
    )  # fmt: skip


def make_certificates(directory: Path) -> Path:
    """ca, other (a CA that signed nothing), server for 127.0.0.1, client; returns `directory`."""
    make_authority(directory, "ca")
    make_authority(directory, "other")
    make_certificate(directory, "server", "IP:127.0.0.1")
    make_certificate(directory, "client", "DNS:client")
    return directory
