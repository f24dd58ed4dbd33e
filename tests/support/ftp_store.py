"""A real FTP server on loopback: a store behind fsspec that can be taken away and put back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ports import free_port

_SERVER = """
import sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer
FTPHandler.authorizer = DummyAuthorizer()
FTPHandler.authorizer.add_anonymous(sys.argv[1], perm="elradfmw")
server = FTPServer(("127.0.0.1", int(sys.argv[2])), FTPHandler)
print(server.address[1], flush=True)
server.serve_forever()
"""


class FtpStore:
    """Serves `directory`, to be started before it is used, again at the same port."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"ftp://127.0.0.1:{self._port}/bodies"

    def start(self) -> FtpStore:
        command = [sys.executable, "-W", "ignore", "-c", _SERVER, self.directory, str(self._port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == f"{self._port}\n"
        return self

    def stop(self) -> None:
        if self._process:
            assert self._process.stdout
            self._process.stdout.close()
            self._process.kill()
            self._process.wait()
            self._process = None
