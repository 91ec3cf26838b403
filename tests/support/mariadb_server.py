"""A real MariaDB server on a free port of the loopback address, in a folder of its own, stopped at the end."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SETTINGS = {
    "bind-address": "127.0.0.1",
    "log-bin": "binlog",
    "server-id": "1",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "innodb-buffer-pool-size": "64M",
    "innodb-flush-log-at-trx-commit": "0",
    "sync-binlog": "0",
    "character-set-server": "utf8mb4",
    "default-time-zone": "+05:30",
}
"""A time zone of its own shows where one is forgotten."""


def programs_or_skip() -> Path:
    """The server; without one, tests are skipped, but not in CI."""
    named = os.environ.get("NEVERMORE_MARIADB")
    found = Path(named or shutil.which("mariadbd") or "/usr/sbin/mariadbd")
    if found.exists() and find_spec("pymysql") is not None:
        return found
    if os.environ.get("CI"):
        raise FileNotFoundError("MariaDB is missing: install mariadb-server and the development dependencies")
    pytest.skip("MariaDB is not installed")


class MariaServer:
    """A running server. `connect` returns connections that commit each statement."""

    def __init__(self, program: Path, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.program, self.folder = program, folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._user = None
        if os.geteuid() == 0:
            self._user = next(u.pw_name for n in ("mysql", "nobody") for u in pwd.getpwall() if u.pw_name == n)
            shutil.chown(folder, self._user)
        self.options = {**SETTINGS, **(settings or {})}
        install = shutil.which("mariadb-install-db") or "/usr/bin/mariadb-install-db"
        done = subprocess.run(
            [install, "--no-defaults", f"--datadir={folder / 'data'}", "--auth-root-authentication-method=normal",
             "--skip-test-db", "--innodb-log-file-size=8M"],
            user=self._user, cwd=folder, capture_output=True, check=False,
            env={"PATH": f"{os.environ['PATH']}:/usr/sbin", "LC_ALL": "C"},
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr).decode()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.program), "--no-defaults", f"--datadir={self.folder / 'data'}", f"--port={self.port}",
                 f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'pid'}",
                 *(f"--{name}={value}" for name, value in self.options.items())],
                user=self._user, cwd=self.folder, stdout=log, stderr=log, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            )  # fmt: skip
        import pymysql

        for _ in range(600):
            try:
                self.connect().close()
            except pymysql.OperationalError:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return
        raise TimeoutError("MariaDB did not start")

    def stop(self, *, kill: bool = False) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(30)
            self._process = None

    def connect(self, database: str | None = None, *, autocommit: bool = True, **options: Any) -> Any:
        import pymysql

        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, autocommit=autocommit, charset="utf8mb4",
            **options,
        )  # fmt: skip

    def dsn(self, database: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"


@contextmanager
def mariadb(program: Path, settings: dict[str, str] | None = None) -> Iterator[MariaServer]:
    """A server that runs within the block."""
    folder = Path(tempfile.mkdtemp(prefix="nevermore-mariadb-"))
    try:
        server = MariaServer(program, folder, settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
